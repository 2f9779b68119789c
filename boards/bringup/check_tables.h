/* check_tables.h - the tables of checks, each in the file of its name; the last row's id is NULL. */
#ifndef KEEL_CHECK_TABLES_H
#define KEEL_CHECK_TABLES_H

#include "board_check.h"

extern const struct keel_check keel_checks_identity[]; /* level 0 */
extern const struct keel_check keel_checks_memory[];   /* level 3 */
extern const struct keel_check keel_checks_soak[];     /* level 6 */
extern const struct keel_check keel_checks_faults[];   /* level 7 */
extern const struct keel_check keel_checks_pair[];     /* level 8 */

#endif
