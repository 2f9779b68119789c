kernels_CL_COMMON :=
kernels_CL :=
kernels_SRC :=
