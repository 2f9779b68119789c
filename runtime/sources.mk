runtime_SRC := keel_main.c \
	worker_link.c
