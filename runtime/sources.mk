# One source a line.
runtime_SRC += data.c
runtime_SRC += drill.c
runtime_SRC += job.c
runtime_SRC += keel_main.c
runtime_SRC += seal.c
runtime_SRC += secret.c
runtime_SRC += trainer.c
runtime_SRC += trainer_state.c
runtime_SRC += trainer_text.c
runtime_SRC += tree_hold.c
runtime_SRC += worker_link.c
runtime_SRC := keel_main.c \
	mailbox.c \
	seal.c \
	secret.c \
	worker_link.c
