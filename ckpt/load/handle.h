/* handle.h - the tag of an open store, save or snapshot. Every public call asserts it, so that use after
 * close ends the program with a message. It catches most such errors, not all: freed memory may still hold
 * the tag. */
#ifndef KEEL_CKPT_HANDLE_H
#define KEEL_CKPT_HANDLE_H

enum { KEEL_HANDLE_OPEN = 0x6b65656c }; /* in `handle`; 0 once it is closed */

#endif
