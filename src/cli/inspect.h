/* What `inspect` has found, and its two ways to show it. */
#ifndef RH_CLI_INSPECT_H
#define RH_CLI_INSPECT_H

#include "core/json.h"
#include "data/preview.h"

#include <stdio.h>

/* Of the whole set, before it is packed. */
struct inspect_summary {
	const struct rh_config *config;
	const struct rh_dataset *set, *held_out; /* held_out has no documents where there is none */
	int64_t median, high, longest;           /* tokens in a document: the middle one, 95 in 100 are no longer, the longest */
};

/* A row as lines for a terminal, or with trained runs between marks where there are no colours. */
enum inspect_colours { INSPECT_MARKS, INSPECT_COLOURS };
void inspect_print_row(FILE *out, const struct rh_preview *row, enum inspect_colours colours);

/* One HTML page that needs no other file: begin, rows, end; `out` collects it. */
int inspect_html_begin(const struct inspect_summary *summary, struct rh_text *out) RH_MUST;
int inspect_html_row(const struct rh_preview *row, struct rh_text *out) RH_MUST;
int inspect_html_end(struct rh_text *out) RH_MUST;

#endif
