# One source a line.
boards_CL += bringup/memcheck.cl

boards_SRC += bringup/board.c
boards_SRC += bringup/board_cmd.c
boards_SRC += bringup/board_file.c
boards_SRC += bringup/board_find.c
boards_SRC += bringup/ini.c
boards_SRC += bringup/memcheck.c
boards_SRC += bringup/quarantine.c
boards_SRC += bringup/quarantine_cmd.c
