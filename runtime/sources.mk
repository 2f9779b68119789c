runtime_SRC := \
	data.c \
	drill.c \
	job.c \
	keel_main.c \
	seal.c \
	secret.c \
	trainer.c \
	trainer_state.c \
	trainer_text.c \
	tree_hold.c \
	worker_link.c \

