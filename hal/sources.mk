# hal_HOST_SRC needs no device and no OpenCL: it is all that libkeel-ckpt takes from here.
hal_HOST_SRC := \
	status.c \
	text.c \
	log.c \
	clock.c \
	thread.c \
	memory.c \
	disk.c \
	file.c \
	process.c
hal_SRC := $(hal_HOST_SRC) \
	command.c \
	json.c \
	device.c \
	device_open.c \
	device_program.c \
	device_queue.c \
	device_commands.c \
	device_select.c \
	device_health.c \
	health_machine.c \
	device_fault.c \
	device_trace.c \
	fault_plan.c \
	host_device.c \
	null_device.c \
	opencl_discover.c \
	opencl_icd.c \
	opencl_device.c \
	opencl_program.c \
	opencl_queue.c \
	opencl_commands.c \
	opencl_event.c
