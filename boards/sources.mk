boards_CL := \
	bringup/memcheck.cl \

boards_SRC := \
	bringup/board_cmd.c \
	bringup/memcheck.c \
	bringup/quarantine.c \
	bringup/quarantine_cmd.c \

	bringup/ini.c
