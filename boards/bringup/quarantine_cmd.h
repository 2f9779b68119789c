/* quarantine_cmd.h - what `keel board` shows of quarantined boards, and how it lets them out again. */
#ifndef KEEL_QUARANTINE_CMD_H
#define KEEL_QUARANTINE_CMD_H

#include <keel/quarantine.h>

/* The part of `keel board list` about boards that are out, for people: nothing when there are none. A folder
 * that cannot be read is said on standard output too, for then no board is admitted. */
void keel_quarantine_print(void);

#endif
