################################################################################
#
# keel
#
################################################################################

KEEL_VERSION = 0.1.0
# The tree that this folder is in.
KEEL_SITE = $(BR2_EXTERNAL_KEEL_PATH)/../..
KEEL_SITE_METHOD = local
# What was built there is for another machine.
KEEL_OVERRIDE_SRCDIR_RSYNC_EXCLUSIONS = --exclude=/build
KEEL_LICENSE = Apache-2.0
KEEL_LICENSE_FILES = LICENSE
KEEL_DEPENDENCIES = host-pkgconf inih jansson libsodium xxhash zlib

# What Buildroot has no package of: ranks talk within the host, erasure codes are plain C, products are our own.
KEEL_OPTS = FABRIC=no CLBLAST=no ISAL=no HTTP=no
ifeq ($(BR2_PACKAGE_KEEL_OPENCL),y)
KEEL_DEPENDENCIES += libopencl
KEEL_OPTS += OPENCL=yes
else
KEEL_OPTS += OPENCL=no
endif
ifeq ($(BR2_STATIC_LIBS),y)
KEEL_OPTS += STATIC=yes
endif

KEEL_PROGRAMS = keel-board keel-ckpt $(if $(BR2_PACKAGE_KEEL_RUNTIME),keel)
KEEL_MAKE_OPTS = $(TARGET_CONFIGURE_OPTS) $(KEEL_OPTS) BUILD=build/target

define KEEL_BUILD_CMDS
	$(TARGET_MAKE_ENV) $(MAKE) $(KEEL_MAKE_OPTS) -C $(@D) $(addprefix build/target/,$(KEEL_PROGRAMS))
endef

define KEEL_INSTALL_TARGET_CMDS
	$(foreach program,$(KEEL_PROGRAMS),$(INSTALL) -D -m 0755 $(@D)/build/target/$(program) $(TARGET_DIR)/usr/bin/$(program)$(sep))
endef

$(eval $(generic-package))
