/* api.h - what every public header opens and closes with: names that the shared libraries export (all others
 * are hidden, -fvisibility=hidden), with C linkage for programs in C++. */
#ifndef KEEL_API_H
#define KEEL_API_H

#ifdef __cplusplus
#define KEEL_API_BEGIN                                                                                       \
    _Pragma("GCC visibility push(default)") extern "C"                                                       \
    {
#define KEEL_API_END                                                                                         \
    }                                                                                                        \
    _Pragma("GCC visibility pop")
#else
#define KEEL_API_BEGIN _Pragma("GCC visibility push(default)")
#define KEEL_API_END   _Pragma("GCC visibility pop")
#endif

/* A function that does not return. */
#define KEEL_NORETURN __attribute__((noreturn))

#endif
