/* check_api.h - functions of level 1 that lie in files of their own; the table is in check_api.c. */
#ifndef KEEL_CHECK_API_H
#define KEEL_CHECK_API_H

#include "board_check.h"

/* check_transfers.c */
void keel_check_round_trip(struct keel_check_run *run);
void keel_check_copies(struct keel_check_run *run);
void keel_check_fills(struct keel_check_run *run);
void keel_check_maps(struct keel_check_run *run);
void keel_check_large(struct keel_check_run *run);
/* check_lasting.c */
void keel_check_gives_back(struct keel_check_run *run);
void keel_check_many_buffers(struct keel_check_run *run);
void keel_check_steady(struct keel_check_run *run);
void keel_check_reopens(struct keel_check_run *run);

#endif
