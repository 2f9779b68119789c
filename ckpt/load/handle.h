/* handle.h - what marks a store, a save and a snapshot as open, so that one that was closed, or never opened,
 * ends the program with a line that says so instead of working on whatever lies there now. It is a help for
 * whoever errs, no proof: memory that was given back may hold anything. */
#ifndef KEEL_CKPT_HANDLE_H
#define KEEL_CKPT_HANDLE_H

enum { KEEL_HANDLE_OPEN = 0x6b65656c }; /* in `handle`; 0 once it is closed */

#endif
