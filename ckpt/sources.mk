ckpt_SRC :=
