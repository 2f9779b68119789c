/* check_tables.h - the tables of checks, each in the file of its name; the last row's id is NULL. */
#ifndef KEEL_CHECK_TABLES_H
#define KEEL_CHECK_TABLES_H

#include "board_check.h"

extern const struct keel_check keel_checks_identity[]; /* level 0 */
extern const struct keel_check keel_checks_api[];      /* level 1 */
extern const struct keel_check keel_checks_code[];     /* level 2 */
extern const struct keel_check keel_checks_order[];    /* level 2 */
extern const struct keel_check keel_checks_memory[];   /* level 3 */
extern const struct keel_check keel_checks_numerics[]; /* level 4 */
extern const struct keel_check keel_checks_speed[];    /* level 5 */
extern const struct keel_check keel_checks_rates[];    /* level 5 */
extern const struct keel_check keel_checks_soak[];     /* level 6 */
extern const struct keel_check keel_checks_faults[];   /* level 7 */
extern const struct keel_check keel_checks_pair[];     /* level 8 */

#endif
