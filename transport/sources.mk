transport_SRC := \
	tree.c \
	collective.c \
	combine.c \
	schedule.c \
	schedule_build.c \
	schedule_link.c \
	schedule_flat.c \
	schedule_direct.c \
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
	recording_text.c \
	who.c \
	net_json.c \
	net_cmd.c \
	net_cmd_who.c
