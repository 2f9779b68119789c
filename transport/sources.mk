transport_SRC := \
	tree.c \
	handshake.c \
	line.c \
	fabric.c \
	reduce.c \
	flow.c \
	session.c \
	endpoint.c \
	group.c \
	operation.c \
	collective.c \
	recorder.c \
	recorder_file.c \
	recording.c \
	recording_text.c
