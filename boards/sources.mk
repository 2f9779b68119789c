# One source a line.
boards_CL += bringup/memcheck.cl

boards_SRC += bringup/artifact.c
boards_SRC += bringup/artifact_make.c
boards_SRC += bringup/artifact_manifest.c
boards_SRC += bringup/artifact_write.c
boards_SRC += bringup/board.c
boards_SRC += bringup/board_bench.c
boards_SRC += bringup/board_build.c
boards_SRC += bringup/board_cmd.c
boards_SRC += bringup/board_diff.c
boards_SRC += bringup/board_list.c
boards_SRC += bringup/board_record.c
boards_SRC += bringup/board_file.c
boards_SRC += bringup/board_find.c
boards_SRC += bringup/board_init.c
boards_SRC += bringup/check_table.c
boards_SRC += bringup/check_child.c
boards_SRC += bringup/check_runner.c
boards_SRC += bringup/check_verdict.c
boards_SRC += bringup/check_page.c
boards_SRC += bringup/check_report.c
boards_SRC += bringup/check_cmd.c
boards_SRC += bringup/check_identity.c
boards_SRC += bringup/check_memory.c
boards_SRC += bringup/check_soak.c
boards_SRC += bringup/check_faults.c
boards_SRC += bringup/check_pair.c
boards_SRC += bringup/check_api.c
boards_SRC += bringup/check_code.c
boards_SRC += bringup/check_numerics.c
boards_SRC += bringup/check_speed.c
boards_SRC += bringup/ini.c
boards_SRC += bringup/member.c
boards_SRC += bringup/member_main.c
boards_SRC += bringup/memcheck.c
boards_SRC += bringup/quarantine.c
boards_SRC += bringup/quarantine_cmd.c
boards_SRC += bringup/rig.c

# The layer that plays other boards in tests (boards/emulated/layer.c): a library of its own, none of Keel in it.
emulated_SRC += emulated/layer.c
emulated_SRC += emulated/layer_code.c
emulated_SRC += emulated/layer_fault.c
emulated_SRC += emulated/layer_identity.c
emulated_SRC += emulated/layer_objects.c
emulated_SRC += emulated/layer_plan.c
