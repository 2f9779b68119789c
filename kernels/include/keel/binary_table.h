/* binary_table.h - the functions of two values, one row each. C and OpenCL C read it: from a row come number,
 * kernel, host reference, both gradients, golden cases and tests (kernels/README.md).
 *
 *     kind          of struct keel_binary
 *     name          in messages and dumps
 *     value         of a and b, in the words of keel/activation_table.h's rows
 *     slope_a       dy times the slope along a; of a, b and dy
 *     slope_b       likewise
 *     truth         the value in double
 *     low_a, low_b  the least that tests and golden inputs have of each; the most is 4
 *     smooth        whether tests look at the slopes: no where it steps
 *     hashes        of the golden cases: 67 with 67, [5,17,3] with [17,1], [2,3,4,19] with [3,1,19] */
#ifndef KEEL_BINARY_TABLE_H
#define KEEL_BINARY_TABLE_H

#define KEEL_BINARY_TABLE(X)                                                                                 \
    X(KEEL_ADD, add, a + b, dy, dy, a + b, -4.0f, -4.0f, true,                                               \
      (0xa359b8f119bc8b7a, 0xacb36b63ad604189, 0xa4e459ffd0995747))                                          \
    X(KEEL_SUBTRACT, subtract, a - b, dy, -dy, a - b, -4.0f, -4.0f, true,                                    \
      (0x0dce46696a9ff3dd, 0xdf89b92be560c204, 0x626c9981a6cb0a60))                                          \
    X(KEEL_MULTIPLY, multiply, a *b, dy *b, dy *a, a *b, -4.0f, -4.0f, true,                                 \
      (0x298e93d930dfc03a, 0xd4746ec79da0d1ef, 0x4e147c49e51935bf))                                          \
    X(KEEL_DIVIDE, divide, canon_divide(a, b), canon_divide(dy, b),                                          \
      -canon_divide(dy *canon_divide(a, b), b), a / b, -4.0f, 0.5f, true,                                    \
      (0xe74946daccc8fd13, 0x0761bcba354f1ba2, 0x7adfe24c54cf40c2))                                          \
    /* of a below 0 a number where b is whole */                                                             \
    X(KEEL_POWER, power, canon_power(a, b),                                                                  \
      b == 0.0f ? (canon_real)(0.0f) : dy * (b * canon_power(a, b - 1.0f)), canon_power_slope(a, b, dy),     \
      pow(a, b), 0.5f, -2.0f, true, (0x63190d06cd822f44, 0x621f31c78ffce82a, 0x9d553c90b3d57e66))            \
    /* of equal ones the slope is a's */                                                                     \
    X(KEEL_MAXIMUM, maximum, ((a < b) | (b != b)) ? b : a, ((a < b) | (b != b)) ? (canon_real)(0.0f) : dy,   \
      ((a < b) | (b != b)) ? dy : (canon_real)(0.0f), fmax(a, b), -4.0f, -4.0f, false,                       \
      (0x3dbf7eb4ebce05d8, 0xf032830cabd70fca, 0xa78acc3fa8f3f7d5))                                          \
    X(KEEL_MINIMUM, minimum, ((a > b) | (b != b)) ? b : a, ((a > b) | (b != b)) ? (canon_real)(0.0f) : dy,   \
      ((a > b) | (b != b)) ? dy : (canon_real)(0.0f), fmin(a, b), -4.0f, -4.0f, false,                       \
      (0x6e8f3ac70d922dde, 0x756e294990348a1d, 0x519f5cc2573025be))                                          \
    /* 1 or 0 */                                                                                             \
    X(KEEL_EQUAL, equal, a == b ? (canon_real)(1.0f) : (canon_real)(0.0f), (canon_real)(0.0f),               \
      (canon_real)(0.0f), a == b, -4.0f, -4.0f, false,                                                       \
      (0x1d3932b1f7b77e48, 0x6ce17d9eca042b55, 0x6a2e62660672fbd5))                                          \
    X(KEEL_LESS, less, a < b ? (canon_real)(1.0f) : (canon_real)(0.0f), (canon_real)(0.0f),                  \
      (canon_real)(0.0f), a < b, -4.0f, -4.0f, false,                                                        \
      (0x116feea9e187ca75, 0x224c903695f20745, 0x80e553aa2aa27425))                                          \
    /* b where a is not 0, else 0; b where a is 0, else 0: their sum chooses */                              \
    X(KEEL_WHERE, where, a != 0.0f ? b : (canon_real)(0.0f), (canon_real)(0.0f),                             \
      a != 0.0f ? dy : (canon_real)(0.0f), a != 0 ? b : 0, -4.0f, -4.0f, false,                              \
      (0x28f40b2083934866, 0xa21a4f0b81e741c7, 0x5ef8e2657869f0b6))                                          \
    X(KEEL_WHERE_NOT, where_not, a != 0.0f ? (canon_real)(0.0f) : b, (canon_real)(0.0f),                     \
      a != 0.0f ? (canon_real)(0.0f) : dy, a != 0 ? 0 : b, -4.0f, -4.0f, false,                              \
      (0x06533f9a8c0b3620, 0x2adda29ab4d8a2cf, 0x287e944a141d9a8c))                                          \
    /* a, in the shape of both */                                                                            \
    X(KEEL_FIRST, first, a, dy, (canon_real)(0.0f), a, -4.0f, -4.0f, true,                                   \
      (0x79f0d0543964b6ca, 0x5c9f8b7c9f251df1, 0xd83039021b96581e))

#endif
