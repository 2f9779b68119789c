# hal_HOST_SRC needs no device and no OpenCL: it is all that libkeel-ckpt takes from here.
hal_HOST_SRC := status.c log.c clock.c thread.c memory.c file.c process.c
hal_SRC := $(hal_HOST_SRC)
