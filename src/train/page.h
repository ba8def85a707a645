/* What runs did, on one page of HTML that needs no other file and no network: their curves side by side, evaluations and answers, where
 * the time went, memory and speed beside the plan's, the data, a recorded step, configuration and files. From what lies in output_dir. */
#ifndef RH_TRAIN_PAGE_H
#define RH_TRAIN_PAGE_H

#include "core/text.h"

#define RH_PAGE_NAME "report.html"
enum { RH_PAGE_RUNS = 4 };

/* Directories that runs wrote to, also of runs that still go on. -ENOENT: one holds no metrics.jsonl, -ENODATA: it logged no step yet. */
int rh_page_make(const char *const *dirs, size_t count, struct rh_text *out) RH_MUST;

/* A run's end: its page into its directory, unless something else of that name is there. Nothing where it logged no step. What fails is
 * told, and is no fault of the run's. */
void rh_page_leave(const char *dir);

#endif
