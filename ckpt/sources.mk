ckpt_SRC := \
	format.c \
	deflate_encode.c \
	planes.c \
	codec.c \
	store.c \
	manifest.c \
	shard.c \
	save_stream.c \
	save.c \
	box.c \
	snapshot.c \
	snapshot_read.c \
	commit.c \
	ckpt_cmd.c
