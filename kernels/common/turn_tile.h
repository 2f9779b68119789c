/* turn_tile.h - a tile of 16 x 16 words turned in registers: rows become columns (OpenCL C only, for
 * KEEL_BY_LANE 0: Oclgrind cannot read vectors that are made of vectors).
 *
 * TURN_TILE(type): the user defines PIECE(l, c), elements 4c to 4c + 3 of row l as a vector of four, and
 * PUT(m, v), which takes column m as a vector `v` of sixteen; type is float16 or uint16. Four columns at a
 * time: rows 4q + r, q from 0 to 3, lie side by side in one register, and so four registers hold four blocks
 * of 4 x 4 that are turned where they lie, by two rounds of shuffles
 * which need no indices in registers. Shuffles of whole rows want four rounds, and took a tenth longer. */
#define TURN_LOW(type, x, y)                                                                                 \
    (type)(x.s0, y.s0, x.s1, y.s1, x.s4, y.s4, x.s5, y.s5, x.s8, y.s8, x.s9, y.s9, x.sc, y.sc, x.sd, y.sd)
#define TURN_HIGH(type, x, y)                                                                                \
    (type)(x.s2, y.s2, x.s3, y.s3, x.s6, y.s6, x.s7, y.s7, x.sa, y.sa, x.sb, y.sb, x.se, y.se, x.sf, y.sf)
#define TURN_LOW_PAIRS(type, x, y)  (type)(x.s01, y.s01, x.s45, y.s45, x.s89, y.s89, x.scd, y.scd)
#define TURN_HIGH_PAIRS(type, x, y) (type)(x.s23, y.s23, x.s67, y.s67, x.sab, y.sab, x.sef, y.sef)
#define TURN_ROWS(type, r, c)       (type)(PIECE(r, c), PIECE(4 + r, c), PIECE(8 + r, c), PIECE(12 + r, c))
#define TURN_COLUMNS(type, c)                                                                                \
    {                                                                                                        \
        const type r0 = TURN_ROWS(type, 0, c), r1 = TURN_ROWS(type, 1, c);                                   \
        const type r2 = TURN_ROWS(type, 2, c), r3 = TURN_ROWS(type, 3, c);                                   \
        const type low01 = TURN_LOW(type, r0, r1), low23 = TURN_LOW(type, r2, r3);                           \
        const type high01 = TURN_HIGH(type, r0, r1), high23 = TURN_HIGH(type, r2, r3);                       \
        PUT(4 * c, TURN_LOW_PAIRS(type, low01, low23))                                                       \
        PUT(4 * c + 1, TURN_HIGH_PAIRS(type, low01, low23))                                                  \
        PUT(4 * c + 2, TURN_LOW_PAIRS(type, high01, high23))                                                 \
        PUT(4 * c + 3, TURN_HIGH_PAIRS(type, high01, high23))                                                \
    }
#define TURN_TILE(type)                                                                                      \
    TURN_COLUMNS(type, 0) TURN_COLUMNS(type, 1) TURN_COLUMNS(type, 2) TURN_COLUMNS(type, 3)
