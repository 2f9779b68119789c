/* canon_wide.h - the words of canon_math.h for sixteen floats at a time (OpenCL C only), and what
 * every .cl file needs before its first line. canon_scalar.h says how the two widths fit together. */
#pragma OPENCL FP_CONTRACT OFF
#define canon_real         float16
#define canon_word         uint
#define canon_bits         uint16
#define canon_to_real(x)   convert_float16(x)
#define canon_as_real(x)   as_float16(x)
#define canon_as_bits(x)   as_uint16(x)
#define canon_fma(a, b, c) fma((float16)(a), (float16)(b), (float16)(c))
#define canon_mul_hi(a, b) mul_hi((uint16)(a), (uint16)(b))
#define canon_flush        canon_flush_x16
#define canon_divide       canon_divide_x16
#define canon_sqrt         canon_sqrt_x16
#define canon_rsqrt        canon_rsqrt_x16
#define canon_rsqrt_seeded canon_rsqrt_seeded_x16
#define canon_reciprocal   canon_reciprocal_x16
#define canon_exp          canon_exp_x16
#define canon_log          canon_log_x16
#define canon_tanh         canon_tanh_x16
#define canon_cos          canon_cos_x16
#define canon_sigmoid      canon_sigmoid_x16
#define canon_gelu         canon_gelu_x16
#define canon_gelu_slope   canon_gelu_slope_x16
#define canon_philox       canon_philox_x16
#define canon_uniform      canon_uniform_x16
