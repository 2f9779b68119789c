# What the Makefile puts before every .cl: the canonical arithmetic, once for float16, once for float.
kernels_CL_COMMON := common/canon_wide.h common/canon_vector.h common/canon_math.h common/canon_random.h \
	common/canon_scalar.h common/canon_math.h common/canon_random.h common/canon_lane.h common/canon_tree.h \
	common/canon_row.h
# And before some: kernels_CL_NAME, before NAME.cl.
kernels_CL_gemm := common/canon_half.h gemm/gemm_tile.h gemm/gemm_part.h gemm/gemm_few.h gemm/gemm_strips.h \
	gemm/gemm_lanes.h gemm/lanes_tile.h gemm/lanes_tile.h gemm/lanes_tile.h
kernels_CL_elementwise := include/keel/activation_table.h
kernels_CL_tensor := include/keel/binary_table.h
kernels_CL_cast := common/canon_half.h
kernels_CL_attention := common/turn_tile.h attention/alibi.h attention/attention_mask.h attention/attention_drop.h \
	attention/attention_lanes.h
kernels_CL_attention_class := planes/planes_math.h planes/exact8_math.h attention/alibi.h attention/attention_mask.h \
	attention/attention_drop.h
kernels_CL_decode := common/canon_half.h attention/alibi.h planes/planes_math.h planes/exact8_math.h planes/bf16_math.h
kernels_CL_conv_tiles := common/turn_tile.h
kernels_CL_shape := common/turn_tile.h
kernels_CL_optimizer := common/canon_half.h
kernels_CL_winograd := conv/winograd_math.h
kernels_CL_planes := common/canon_half.h gemm/gemm_tile.h planes/planes_math.h planes/exact8_math.h planes/bf16_math.h \
	planes/planes_part.h planes/planes_cut.h planes/exact8_strips.h planes/bf16_strips.h planes/planes_strips.h \
	planes/planes_lanes.h planes/exact8_mma.h
