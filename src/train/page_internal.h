/* Inside the page: what is read of a run, and its sections. */
#ifndef RH_TRAIN_PAGE_INTERNAL_H
#define RH_TRAIN_PAGE_INTERNAL_H

#include "core/json.h"
#include "core/text.h"
#include "observe/status.h"
#include "train/page.h"

/* Columns of metrics.jsonl. Those of times begin at TIMES, in the order of enum rh_time_part. */
enum page_column {
	PAGE_EPOCH,
	PAGE_LOSS,
	PAGE_GRAD_NORM,
	PAGE_LEARNING_RATE,
	PAGE_SPEED,
	PAGE_ELAPSED,
	PAGE_VRAM_PEAK,
	PAGE_RAM_PEAK,
	PAGE_NVME_PEAK,
	PAGE_EVAL_LOSS,
	PAGE_STEP,
	PAGE_TIMES,
	PAGE_COLUMNS = PAGE_TIMES + RH_TIME_PARTS
};

/* The latest so many answers of sample_prompts are kept. */
enum { PAGE_ANSWERS = 512 };
struct page_answer {
	int64_t step, sample;
	json_t *line; /* owned: prompt, answer, ended */
};

struct page_run {
	const char *dir;             /* borrowed */
	double *value[PAGE_COLUMNS]; /* a number a line; NAN: the line has none */
	size_t lines, capacity[PAGE_COLUMNS];
	struct page_answer *answer;
	size_t answers, answer_room;
	json_t *status; /* status.json; NULL: there is none that can be read */
	char *config;   /* the text of the newest checkpoint's config.yaml; NULL: none */
	/* (losses) of each step, where status.json has them and metrics.jsonl fewer: a short run's curve. NULL: none */
	double *loss_step, *loss;
	size_t losses;
	double *planned; /* (lines) planned tokens/s, each the same; NULL: not known */
};

/* page_read.c */
int page_run_read(const char *dir, struct page_run *run) RH_MUST;
void page_run_free(struct page_run *run);
enum page_how { PAGE_LAST, PAGE_LEAST, PAGE_MOST, PAGE_MEAN };
/* One figure of a column; NAN: no line has it. */
double page_figure(const struct page_run *run, enum page_column column, enum page_how how);
double page_sum(const struct page_run *run, enum page_column column);
/* A number of status.json, by a path of keys such as "run.planned.vram"; NAN: it says none. */
double page_fact(const struct page_run *run, const char *path);
const json_t *page_fact_json(const struct page_run *run, const char *path);

/* page_parts.c */
int page_put_text(struct rh_text *out, const char *text) RH_MUST;
int page_put_time(const struct page_run *runs, size_t count, struct rh_text *out) RH_MUST;
int page_put_data(const struct page_run *runs, size_t count, struct rh_text *out) RH_MUST;
int page_put_answers(const struct page_run *runs, size_t count, struct rh_text *out) RH_MUST;
/* Keys in which the configurations differ; nothing of one run. */
int page_put_differences(const struct page_run *runs, size_t count, struct rh_text *out) RH_MUST;
int page_put_files(const struct page_run *run, struct rh_text *out) RH_MUST;

/* The script that zooms pictures of class zoom. */
extern const char page_script[];

#endif
