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
	operation.c
