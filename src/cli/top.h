/* The view of `top`: lines of text made of a run's status.json. */
#ifndef RH_CLI_TOP_H
#define RH_CLI_TOP_H

#include "core/json.h"
#include "core/text.h"
#include "machine/nvml.h"

/* How it is drawn. */
struct top_style {
	int columns;  /* no line is wider; 0: any width */
	int is_ascii; /* no other characters */
	int64_t now;  /* seconds since 1970 */
	int is_alive; /* the process that wrote the status still runs */
};
/* The lines, each with its line break. nvml: may be NULL. */
int top_view(const json_t *status, const char *dir, const struct rh_nvml *nvml, const struct top_style *style, struct rh_text *out) RH_MUST;
/* 1: the run will write no more. */
int top_is_over(const json_t *status, int is_alive);

#endif
