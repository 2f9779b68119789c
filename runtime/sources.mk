runtime_SRC := keel_main.c \
	seal.c \
	secret.c \
	worker_link.c
