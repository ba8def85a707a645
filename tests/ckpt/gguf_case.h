#ifndef RH_TESTS_CKPT_GGUF_CASE_H
#define RH_TESTS_CKPT_GGUF_CASE_H

#include "ckpt/gguf.h"

/* What opening the file says. */
static inline int gguf_try(const char *path)
{
	struct rh_gguf *gguf;
	int rc = rh_gguf_open(path, &gguf);
	if (!rc)
		rh_gguf_close(gguf);
	return rc;
}

#endif
