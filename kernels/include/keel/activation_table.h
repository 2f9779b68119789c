/* activation_table.h - the functions of one value that have a gradient, one row each. C and OpenCL C read it:
 * a row is all there is of a function. From it come its number, kernel, host reference, gradient, golden
 * cases and tests (kernels/README.md).
 *
 *     kind       of struct keel_activation
 *     name       in messages and dumps; the kernels are keel_NAME and keel_NAME_grad
 *     value      f(x), in the words of kernels/common/canon_math.h: + - * canon_fma, comparisons and
 *                c ? a : b with both sides of canon_real; it is read for one float and for sixteen
 *     slope      g(x, dy), which is dy f'(x)
 *     of         KEEL_GRADIENT_OF_Y where the slope is the same of y as of x: then x need not be kept
 *     truth      f(x) in double
 *     low, high  between which it is tested and golden inputs lie; tests of what is defined below 0 go an
 *                eighth further
 *     corners    where it has no slope, two at most; KEEL_SMOOTH: nowhere
 *     limits     f of -inf, -200, -0, 0, 200 and inf, where that is a number
 *     values     golden cases of the value: the front of their names, hashes of 1, 67 and 4,115 elements
 *     slopes     the same of the slope */
#ifndef KEEL_ACTIVATION_TABLE_H
#define KEEL_ACTIVATION_TABLE_H

#define KEEL_SMOOTH (1e9, 1e9)

#define KEEL_ACTIVATION_TABLE(X)                                                                             \
    X(KEEL_RELU, relu, x <= 0.0f ? (canon_real)(0.0f) : x, x > 0.0f ? dy : (canon_real)(0.0f),               \
      KEEL_GRADIENT_OF_Y, fmax(x, 0.0), -8.0f, 8.0f, (0.0), (0, 0, 0, 0, 200, INFINITY),                     \
      ("activation/relu-", 0x833cdc3066905648, 0x74eb825bc2a0b5f4, 0x3b95c756bfb4d7f0),                      \
      ("activation_grad/relu-", 0x4d25767f9dce13f5, 0xeeb765175563fa18, 0xec75519a3a5458b6))                 \
    X(KEEL_TANH, tanh, canon_tanh(x), canon_tanh_grad(x, dy), KEEL_GRADIENT_OF_X, tanh(x), -8.0f, 8.0f,      \
      KEEL_SMOOTH, (-1, -1, 0, 0, 1, 1),                                                                     \
      ("activation/tanh-", 0x6ab43dc821592092, 0x4de1c6c42a1d4503, 0xff39f94788c995d0),                      \
      ("activation_grad/tanh-", 0xb2cc0a6f8b7003da, 0xe32e0f6909f142d8, 0x694bd04482a648a2))                 \
    X(KEEL_SIGMOID, sigmoid, canon_sigmoid(x), canon_sigmoid_grad(x, dy), KEEL_GRADIENT_OF_X,                \
      1 / (1 + exp(-x)), -8.0f, 8.0f, KEEL_SMOOTH, (0, 0, 0.5F, 0.5F, 1, 1),                                 \
      ("activation/sigmoid-", 0x8fc747b2e46cc9f6, 0x86a568715bbfff55, 0x8be73f83477b9db3),                   \
      ("activation_grad/sigmoid-", 0x0ad39d42bb966aef, 0x62d7f4aaf0563717, 0x012117dcd77068c4))              \
    /* Elfwing et al. 2018 */                                                                                \
    X(KEEL_SILU, silu, canon_silu(x), canon_silu_grad(x, dy), KEEL_GRADIENT_OF_X, x / (1 + exp(-x)), -8.0f,  \
      8.0f, KEEL_SMOOTH, (NAN, 0, 0, 0, 200, INFINITY),                                                      \
      ("activation/silu-", 0xac727feb6843f21c, 0x476f29b680b0574e, 0xd3cb324b93c6e9e2),                      \
      ("activation_grad/silu-", 0xaaafca0c6dabd28e, 0xf68b266e3291797c, 0x976d026ce8069a27))                 \
    /* Hendrycks and Gimpel 2016, tanh form */                                                               \
    X(KEEL_GELU, gelu, canon_gelu(x), canon_gelu_grad(x, dy), KEEL_GRADIENT_OF_X,                            \
      0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))), -8.0f, 8.0f, KEEL_SMOOTH,           \
      (NAN, 0, 0, 0, 200, INFINITY), ("gelu/", 0xd01eea2223e28ede, 0x15f0b74a166365d0, 0x3ef5a13cfbf693e0),  \
      ("gelu_grad/", 0x5d29cb812fee41e3, 0xb519beb216bc83e3, 0x668b9e877269a397))                            \
    /* the same by its definition, x times the normal distribution's integral */                             \
    X(KEEL_GELU_ERF, gelu_erf, x *canon_fma(canon_erf(x * 0x1.6a09e6p-1f), 0.5f, 0.5f),                      \
      dy *canon_fma(x * 0x1.988454p-2f, canon_exp_below(-0.5f * (x * x)),                                    \
                    canon_fma(canon_erf(x * 0x1.6a09e6p-1f), 0.5f, 0.5f)),                                   \
      KEEL_GRADIENT_OF_X, 0.5 * x * erfc(-x * sqrt(0.5)), -8.0f, 8.0f, KEEL_SMOOTH,                          \
      (NAN, 0, 0, 0, 200, INFINITY),                                                                         \
      ("activation/gelu_erf-", 0xb8f834b7f86a22cf, 0x2be29a7247168cb2, 0x2293b3c118f1b53c),                  \
      ("activation_grad/gelu_erf-", 0x148770a17cd7182e, 0xdeb992195f2cbc5a, 0x1cddaf2c248cf1f9))             \
    X(KEEL_SOFTPLUS, softplus,                                                                               \
      (x < 0.0f ? (canon_real)(0.0f) : x) + canon_log_1p(canon_exp_below(x < 0.0f ? x : -x)),                \
      dy * canon_sigmoid(x), KEEL_GRADIENT_OF_X, log1p(exp(-fabs(x))) + fmax(x, 0.0), -8.0f, 8.0f,           \
      KEEL_SMOOTH, (0, 0, 0.6931472F, 0.6931472F, 200, INFINITY),                                            \
      ("activation/softplus-", 0xe0e0c12522cd32d7, 0x55d35a08d3167d86, 0xea1090669981db30),                  \
      ("activation_grad/softplus-", 0x6575fa3a0dc06103, 0x1ae317fb91043caa, 0xba944f6ca11ac502))             \
    X(KEEL_EXP, exp, canon_exp(x), dy *canon_exp(x), KEEL_GRADIENT_OF_X, exp(x), -8.0f, 8.0f, KEEL_SMOOTH,   \
      (0, 0, 1, 1, INFINITY, INFINITY),                                                                      \
      ("activation/exp-", 0x702a918e28d1b087, 0x70ef182012ed35ab, 0x8f3a8c275262b9f7),                       \
      ("activation_grad/exp-", 0x4dbb1c1d5ae4f193, 0xc3d34c2b8bdf9338, 0xdbd39eaeee1fa6cc))                  \
    X(KEEL_LOG, log, canon_log(x), canon_divide(dy, x), KEEL_GRADIENT_OF_X, log(x), 0.25f, 64.0f,            \
      KEEL_SMOOTH, (NAN, NAN, -INFINITY, -INFINITY, 5.2983174F, INFINITY),                                   \
      ("activation/log-", 0x954aabdbea74a62d, 0x139bcf0c67eddcc3, 0x9b453c5fa6c807cb),                       \
      ("activation_grad/log-", 0x8c03c0d657dc3cd9, 0x64e9a57f582bbb18, 0x5751a2f77b202f65))                  \
    X(KEEL_SQRT, sqrt, canon_sqrt(x), canon_divide(0.5f * dy, canon_sqrt(x)), KEEL_GRADIENT_OF_X, sqrt(x),   \
      0.25f, 64.0f, KEEL_SMOOTH, (NAN, NAN, 0, 0, 14.142136F, INFINITY),                                     \
      ("activation/sqrt-", 0xbcb7f20cb4f1cd38, 0x9ff6b09f65c5bdda, 0x61b17073794f982e),                      \
      ("activation_grad/sqrt-", 0xbdc4d6ec2320be14, 0xaa1fd8121cfbbb8f, 0x7e7dcf4d0766e1e8))                 \
    X(KEEL_RECIPROCAL, reciprocal, canon_divide((canon_real)(1.0f), x),                                      \
      -canon_divide(canon_divide(dy, x), x), KEEL_GRADIENT_OF_X, 1 / x, 0.25f, 64.0f, KEEL_SMOOTH,           \
      (0, -0.005F, -INFINITY, INFINITY, 0.005F, 0),                                                          \
      ("activation/reciprocal-", 0x719a90d374581c46, 0x56a1a6e4ba5be738, 0x651607b8b1a3f145),                \
      ("activation_grad/reciprocal-", 0x3452140b092e801e, 0x47fdbab477f53c58, 0xd64971b6794da331))           \
    X(KEEL_SQUARE, square, x *x, (dy + dy) * x, KEEL_GRADIENT_OF_X, x * x, -8.0f, 8.0f, KEEL_SMOOTH,         \
      (INFINITY, 40000, 0, 0, 40000, INFINITY),                                                              \
      ("activation/square-", 0xcf3cf1e4076a3664, 0xaabc227723f5995b, 0x07dd6ad101e6c185),                    \
      ("activation_grad/square-", 0xc5b6b633b55c2fb5, 0x5aca1b4240d1b2af, 0xec07fd79ddb48317))               \
    X(KEEL_ABS, abs, canon_plus_zero(x < 0.0f ? -x : x),                                                     \
      x > 0.0f ? dy : (x < 0.0f ? -dy : (canon_real)(0.0f)), KEEL_GRADIENT_OF_X, fabs(x), -8.0f, 8.0f,       \
      (0.0), (INFINITY, 200, 0, 0, 200, INFINITY),                                                           \
      ("activation/abs-", 0xda5393da70f7daa7, 0xc1bb3d6b2fa97ad9, 0xc64c02cf4ef612a1),                       \
      ("activation_grad/abs-", 0x37fa1396bfce5cc9, 0x1adc4ee2711410f4, 0x79d55a73094c5c14))                  \
    X(KEEL_ERF, erf, canon_erf(x), dy *(0x1.20dd76p+0f * canon_exp_below(-(x * x))), KEEL_GRADIENT_OF_X,     \
      erf(x), -8.0f, 8.0f, KEEL_SMOOTH, (-1, -1, 0, 0, 1, 1),                                                \
      ("activation/erf-", 0xa628a37fc6d871bd, 0xb562486f2f815fb8, 0x89df603a77e594b2),                       \
      ("activation_grad/erf-", 0xa24bce21ac1d913b, 0xffe306308d73167e, 0xcfb7cdd70097156c))                  \
    /* Krizhevsky 2010 */                                                                                    \
    X(KEEL_RELU6, relu6, x <= 0.0f ? (canon_real)(0.0f) : (x > 6.0f ? (canon_real)(6.0f) : x),               \
      ((x > 0.0f) & (x < 6.0f)) ? dy : (canon_real)(0.0f), KEEL_GRADIENT_OF_Y, fmin(fmax(x, 0.0), 6.0),      \
      -8.0f, 8.0f, (0.0, 6.0), (0, 0, 0, 0, 6, 6),                                                           \
      ("activation/relu6-", 0x4d25767f9dce13f5, 0xe8ce23abab519013, 0x7cebb7d469cb250b),                     \
      ("activation_grad/relu6-", 0x4d25767f9dce13f5, 0xd7eaa4cc971e6b1d, 0xa0fc38f745d542b9))                \
    /* Howard et al. 2019: x relu6(x + 3) / 6 */                                                             \
    X(KEEL_HARD_SWISH, hard_swish,                                                                           \
      x <= -3.0f ? (canon_real)(0.0f) : (x >= 3.0f ? x : x * canon_fma(x, 0x1.555556p-3f, 0.5f)),            \
      dy * (x <= -3.0f ? (canon_real)(0.0f)                                                                  \
                       : (x >= 3.0f ? (canon_real)(1.0f) : canon_fma(x, 0x1.555556p-2f, 0.5f))),             \
      KEEL_GRADIENT_OF_X, x * fmin(fmax(x + 3, 0.0), 6.0) / 6, -8.0f, 8.0f, (-3.0, 3.0),                     \
      (0, 0, 0, 0, 200, INFINITY),                                                                           \
      ("activation/hard_swish-", 0xf38cfee44f42137a, 0xbed24dad0c591d96, 0x6e1066d1fbee2df4),                \
      ("activation_grad/hard_swish-", 0xa88cd2528479c6d8, 0xb1c4a2b0fe0555f0, 0x6d151ae1a935e8d2))           \
    /* Clevert et al. 2016 */                                                                                \
    X(KEEL_ELU, elu, x > 0.0f ? x : canon_exp(x) - 1.0f, x > 0.0f ? dy : dy * canon_exp(x),                  \
      KEEL_GRADIENT_OF_X, x > 0 ? x : expm1(x), -8.0f, 8.0f, (0.0), (-1, -1, 0, 0, 200, INFINITY),           \
      ("activation/elu-", 0xd4768b8bd312b88d, 0x61d13eec2403bad1, 0x9f01df5a09fe5633),                       \
      ("activation_grad/elu-", 0x47e9ee4e9383255b, 0xbdc4b425197b6f8d, 0x3bef74a4f73af900))

#endif
