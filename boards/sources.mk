boards_SRC := \
	bringup/board_cmd.c
