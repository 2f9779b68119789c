# What the Makefile puts before every .cl: the canonical arithmetic, once for float16, once for float.
kernels_CL_COMMON := canon_wide.h canon_math.h canon_random.h \
	canon_scalar.h canon_math.h canon_random.h canon_lane.h canon_tree.h
# And before some: kernels_CL_NAME, before NAME.cl.
kernels_CL_gemm := gemm_tile.h
# One a line, so that lines are added without touching others.
kernels_CL += elementwise.cl
kernels_CL += activation.cl
kernels_CL += gemm.cl
kernels_CL += attention.cl
kernels_CL += dropout.cl
kernels_CL += normal.cl
kernels_CL += digest.cl
kernels_CL += layernorm.cl
kernels_CL += optimizer.cl
kernels_CL += cast.cl
kernels_CL += embedding.cl
kernels_CL += cross_entropy.cl
kernels_CL += loss.cl

kernels_SRC += kernels.c
kernels_SRC += canon.c
kernels_SRC += golden.c
kernels_SRC += golden_core.c
kernels_SRC += golden_attention.c
kernels_SRC += tunables.c
kernels_SRC += activation.c
kernels_SRC += activation_host.c
kernels_SRC += elementwise.c
kernels_SRC += elementwise_host.c
kernels_SRC += gemm.c
kernels_SRC += gemm_host.c
kernels_SRC += attention.c
kernels_SRC += attention_host.c
kernels_SRC += dropout.c
kernels_SRC += dropout_host.c
kernels_SRC += normal.c
kernels_SRC += normal_host.c
kernels_SRC += digest.c
kernels_SRC += digest_host.c
kernels_SRC += layernorm.c
kernels_SRC += layernorm_host.c
kernels_SRC += optimizer.c
kernels_SRC += optimizer_host.c
kernels_SRC += cast.c
kernels_SRC += cast_host.c
kernels_SRC += embedding.c
kernels_SRC += embedding_host.c
kernels_SRC += cross_entropy.c
kernels_SRC += cross_entropy_host.c
kernels_SRC += loss.c
kernels_SRC += loss_host.c
