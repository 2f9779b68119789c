# What the Makefile puts before every .cl: the canonical arithmetic, once for float16, once for float.
kernels_CL_COMMON := canon_wide.h canon_math.h canon_random.h \
	canon_scalar.h canon_math.h canon_random.h canon_lane.h canon_tree.h
kernels_CL := \
	elementwise.cl \
	activation.cl \
	gemm.cl \
	attention.cl \
	dropout.cl \
	normal.cl \
	digest.cl \
	layernorm.cl \
	optimizer.cl \
	cast.cl \
	embedding.cl \
	cross_entropy.cl \
	loss.cl \

kernels_SRC := \
	kernels.c \
	canon.c \
	golden.c \
	golden_cases.c \
	tunables.c \
	activation.c \
	activation_host.c \
	elementwise.c \
	elementwise_host.c \
	gemm.c \
	gemm_host.c \
	attention.c \
	attention_host.c \
	dropout.c \
	dropout_host.c \
	normal.c \
	normal_host.c \
	digest.c \
	digest_host.c \
	layernorm.c \
	layernorm_host.c \
	optimizer.c \
	optimizer_host.c \
	cast.c \
	cast_host.c \
	embedding.c \
	embedding_host.c \
	cross_entropy.c \
	cross_entropy_host.c \
	loss.c \
	loss_host.c \

