/* serve_wait.h - when a request may begin that comes behind those that are computed and those that wait, in
 * steps of the model. Pure. */
#ifndef KEEL_SERVE_WAIT_H
#define KEEL_SERVE_WAIT_H

#include <stdint.h>

/* Steps for a text of which `unread` tokens (at least 1) were not computed, and `tokens` (at least 1) are to
 * be drawn. In a step the model reads `rows` tokens of a prompt, where more than KEEL_PROMPT_LEAST are left,
 * and one more of each text; behind the last token that was not computed the next one is drawn. Prompts that
 * are read at once share the rows, which is not counted. */
uint64_t keel_serve_steps(uint32_t unread, uint32_t tokens, uint32_t rows);

/* A text of `steps` takes the first of `slots` that is free: left[i] are the steps until slot i is, to which
 * they are added. The result is how long it waits for that; with `steps` = 0, how long one would. */
uint64_t keel_serve_wait(uint64_t *left, uint32_t slots, uint64_t steps);

#endif
