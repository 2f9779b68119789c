runtime_SRC := keel_main.c
