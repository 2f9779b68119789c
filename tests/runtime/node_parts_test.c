/* node_parts_test.c - all of node_test.c again, built so that nearly every view comes in many parts or as
 * what is other in it, through heads of two: messages with 56 bytes of a view, runs of 64 ranks at most. */
#define NODE_PARTS     /* node_test.c: views do come so */
#include "node_test.c" // NOLINT(bugprone-suspicious-include): the same tests, built another way
