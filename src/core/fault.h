/* Keeps the first fault, with its line, of something that fails once, such as a device or a queue: later faults are its effects and
 * change nothing. Zeroed, it holds none. From any thread: a thread that sees the code has the line too. */
#ifndef RH_CORE_FAULT_H
#define RH_CORE_FAULT_H

#include "core/error.h"

struct rh_fault {
	int code; /* 0 or negative errno; changes once. Atomic: for the functions below */
	char line[RH_ERROR_LINE];
};

/* Keeps `code`, with the calling thread's line, if it is the first; 0: does nothing. */
void rh_fault_keep(struct rh_fault *fault, int code);

/* The first fault, or 0; its line becomes the calling thread's. */
int rh_fault_get(const struct rh_fault *fault) RH_MUST;

/* The same without the line. */
int rh_fault_code(const struct rh_fault *fault);

#endif
