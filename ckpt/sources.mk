ckpt_SRC := \
	format.c \
	seal_key.c \
	chunk_seal.c \
	deflate_encode.c \
	floats.c \
	split.c \
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
	commit_check.c \
	commit.c \
	ckpt_cmd.c \
	ckpt_cmd_path.c \
	ckpt_cmd_out.c \
	ckpt_cmd_ls.c \
	ckpt_cmd_show.c \
	ckpt_cmd_verify.c
