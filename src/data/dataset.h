/* Rows of data files as token ids with a mask of what is trained; then packed, shuffled, cut into micro-batches.
 * - Prompt + completion is one string for the tokenizer; the first len(ids(prompt)) tokens are masked.
 * - End-of-sequence is appended, as text, to `text` and `completion` strings that do not end with it. In conversations the template ends
 *   turns, and nothing is appended.
 * - `messages` are trained whole unless assistant_only_loss (or completion_only_loss, which means the same there) is true.
 * - Truncation keeps the start. Packing is best fit decreasing, once, before shuffling; positions restart in each document. Wrapped, rows
 *   are laid end to end in the file's order and cut into blocks, of which each is one document. */
#ifndef RH_DATA_DATASET_H
#define RH_DATA_DATASET_H

#include "config/config.h"
#include "core/json.h"
#include "core/preference.h"
#include "data/images.h"
#include "token/tokenizer.h"

/* Faults of data that a person should know of before a run; the bits of config->allow are 1 << these, in this order. */
enum rh_lint {
	RH_LINT_UNTRAINED,    /* no token of the row is trained */
	RH_LINT_NO_END,       /* an answer does not end with a special token: the model would not learn to stop */
	RH_LINT_CUT_ANSWER,   /* max_length cuts off an answer's end */
	RH_LINT_DUPLICATE,    /* the row repeats an earlier one */
	RH_LINT_OVERLAP,      /* a row is both trained on and evaluated on */
	RH_LINT_DROPPED_ROLE, /* the chat template drops a message, or what an assistant thought or called */
	RH_LINT_NONE,         /* the chat template writes None for a null */
	RH_LINT_EQUAL,        /* the chosen answer is the rejected one */
	RH_LINT_NO_PROMPT,    /* a pair has no prompt: its answers, or whole conversations, begin otherwise */
	RH_LINTS
};
enum { RH_LINT_EXAMPLES = 3, RH_PLACE_BYTES = 160 };
struct rh_finding {
	int64_t rows;
	char example[RH_LINT_EXAMPLES][RH_PLACE_BYTES]; /* "file:line" or "file (row 7)" of the first */
	char detail[32];                                /* RH_LINT_DROPPED_ROLE: what is dropped */
};

/* Where a document came from: a hash of its row's whole text, and the row's file, and line or number. */
struct rh_origin {
	uint64_t hash;
	int64_t line; /* 0: the file has none */
	int32_t file;
	uint32_t row; /* its number, where no line names it; else 0 */
};

/* What a run's rows are made into. Zeros: next tokens are trained. */
struct rh_objective {
	enum rh_task_kind task;
	int64_t labels;                    /* of a classification */
	const json_t *label_ids;           /* config.json's label2id, borrowed, or NULL */
	const struct rh_image_form *image; /* of a classification of images, borrowed while loading */
	int is_typed;                      /* the model has token types */
	double hidden_share;               /* of tokens, RH_TASK_MASKED_LM */
	uint64_t seed;
};
/* Tokens that BERT's tasks insert. */
struct rh_task_tokens {
	int32_t cls, sep, mask;
};
int rh_task_tokens_find(const struct rh_tokenizer *tokenizer, struct rh_task_tokens *out) RH_MUST;

/* Marks of a token: it is a target (of masked_lm: it may be hidden); it belongs to the second of two texts; it is a target, but none of
 * the answer's. */
enum rh_mark { RH_MARK_NONE, RH_MARK_TRAINED, RH_MARK_SECOND, RH_MARK_PROMPT };

/* A document of a row that says which answer is better (core/preference.h). */
struct rh_judged_document {
	int32_t prompt; /* tokens before its answer */
	enum rh_role role;
	float reference; /* its answer's log-probability by the reference; 0: none is known, or asked for */
};

/* Documents one after another; a row is one document, or several when packed. Of a classification the last of a document's ids is its
 * label, and no token. Of images a document is the image's number in `images` and its label. More than 20 members: the documents, what they
 * are, and a count for each fact that rh_dataset_report tells. */
struct rh_dataset {
	int32_t *ids;            /* (tokens) */
	uint8_t *trained;        /* (tokens) enum rh_mark; a document's first token is never trained */
	int64_t *document_start; /* (documents + 1) into ids */
	int64_t *row_document;   /* (rows + 1) into documents */
	struct rh_judged_document *judged; /* (documents) where the run has a preference; else NULL */
	/* (origins) kept until rh_dataset_check: one for each document, where only a row's first piece has one (others: hash 0);
	 * wrapped: one for each row read. */
	struct rh_origin *origin;
	int64_t origins;
	char **file; /* (files) which origins number */
	size_t files;
	char name[RH_PLACE_BYTES]; /* of its file, or of the first of them */
	int64_t tokens, documents, rows;
	int64_t trained_tokens;
	struct rh_objective objective;
	struct rh_preference preference; /* what its rows are judged by: a row's documents are its answers */
	struct rh_images *images;      /* shared with what is split from it; NULL: texts */
	struct rh_task_tokens special; /* where the objective is not next tokens */
	int32_t vocabulary;            /* hidden tokens are replaced by ids below this one */
	const char *chat_template;     /* name of its conversations' template (static); NULL: no conversations */
	int whole_conversations;       /* `messages`, of which every token is trained */
	int has_answers;               /* completions or conversations, not plain text */
	int64_t max_length;            /* as the run has it */
	int64_t row_length;            /* tokens that a packed row may have; 0: rows are not packed */
	int is_packable;               /* rows to train on of which packing would keep what max_length cuts */
	/* counted while reading, reported by rh_dataset_report */
	struct rh_finding finding[RH_LINTS];
	char unread[512];          /* which columns of the first file that has such are not read; empty: none */
	int64_t read_rows;         /* in the files, blank lines apart */
	int64_t other_rows;        /* of these: rows of files with rows, not texts that are a file each */
	int64_t conversation_rows; /* of these */
	int64_t longest;           /* tokens of the longest row before it is cut; 0: not known */
	int longest_is_about;      /* its length is reckoned from its first tokens */
	int has_longer;            /* some row may be longer: its tokens were not counted to the end */
	int32_t turn_end;          /* the special token that ends a conversation's last answer; -1: not known */
	int64_t dropped_rows;      /* held no trained token: empty, or by truncation */
	int64_t cut_rows;          /* lost tokens to max_length */
	int64_t cut_answers;       /* of these: rows whose last answer lost its end, masked or not */
	int64_t split_rows;        /* bfd_split, wrapped: continued in another document instead */
	int64_t dropped_pieces;    /* pieces or blocks left out since they held no trained token */
	int64_t two_bos_rows;      /* plain rows that begin with BOS, before which the tokenizer puts another one */
	int64_t prefix_mismatches; /* rows whose prompt's ids are not a prefix of the whole's */
	int64_t reading_bytes;     /* host memory that one of the rows took while it was read and encoded, at most */
};

/* Allowances: host memory of the program, its libraries and one device's threads and queues (9 to 14 MiB were seen), and of an entry of the
 * tokenizer's vocabulary (up to 175 bytes). */
enum { RH_DATASET_PROGRAM_BYTES = 29 << 19, RH_DATASET_ENTRY_BYTES = 192 };

/* Reads and tokenizes the files of train_file or validation_file, in turn. The first row of a file decides its form; formats:
 * data/records.h, forms: data/form.h. Conversations need a chat template: config->chat_template, else the tokenizer's own text. Every
 * fault is one line naming path and line number. Dropped rows are counted, never silent; no row left is -EINVAL. Packing happens here
 * when the configuration asks for it. */
enum rh_dataset_part { RH_DATASET_TRAIN, RH_DATASET_VALIDATION };
int rh_dataset_load(enum rh_dataset_part part, const struct rh_config *config, const struct rh_tokenizer *tokenizer,
                    struct rh_dataset *out) RH_MUST;
/* The same for an objective; NULL: next tokens. */
int rh_dataset_load_for(enum rh_dataset_part part, const struct rh_config *config, const struct rh_objective *objective,
                        const struct rh_tokenizer *tokenizer, struct rh_dataset *out) RH_MUST;
void rh_dataset_free(struct rh_dataset *dataset);
/* Host memory that it holds. */
int64_t rh_dataset_bytes(const struct rh_dataset *dataset);
/* Tokens as a model counts them: an image has a class token and its patches. */
int64_t rh_dataset_tokens(const struct rh_dataset *dataset);
/* Targets of a row; where tokens are hidden by lot, those that may be. */
int64_t rh_dataset_row_targets(const struct rh_dataset *dataset, int64_t row);
void rh_dataset_report(const struct rh_dataset *dataset);
/* Tells how many rows rh_dataset_split moved into `held_out`. */
void rh_dataset_report_split(const struct rh_dataset *dataset, const struct rh_dataset *held_out);

/* Compares the rows to train on with the held-out rows (which may be none), and frees the origins of both. A line tells each finding.
 * -EINVAL where one concerns more than 1 row in 100 and config->allow does not name it. */
int rh_dataset_check(struct rh_dataset *train, struct rh_dataset *held_out, const struct rh_config *config) RH_MUST;
const char *rh_lint_name(enum rh_lint lint);
/* What it means, in a few words. */
const char *rh_lint_meaning(enum rh_lint lint);

/* Answers that are judged by themselves, after rh_dataset_split: cuts them to max_length. With KTO each row gets a second document, its
 * prompt with the answer of the row before it; of each `batch` rows in the file's order the first has that of the last. */
int rh_dataset_pair(struct rh_dataset *set, int64_t batch, int64_t max_length) RH_MUST;

/* Moves a share (0..1) of the rows, drawn by the seed, into *held_out. Both keep file order. At least one row goes each way. */
int rh_dataset_split(struct rh_dataset *dataset, double share, uint64_t seed, struct rh_dataset *held_out) RH_MUST;

/* Which rows make which micro-batch: a function of (rows, batch, accumulation, seed, epoch) alone.
 * A step is `accumulation` micro-batches of `batch` rows; an epoch ends with a short step (fewer micro-batches, the last of them maybe
 * with fewer rows) if rows are left. */
struct rh_sampler;
int rh_sampler_create(int64_t rows, int64_t batch, int64_t accumulation, enum rh_sampling sampling, uint64_t seed,
                      struct rh_sampler **out) RH_MUST;
void rh_sampler_destroy(struct rh_sampler *sampler);
int64_t rh_sampler_steps_per_epoch(const struct rh_sampler *sampler);
/* How many micro-batches step `step` (0-based, within its epoch) has. */
int64_t rh_sampler_micro_batches(const struct rh_sampler *sampler, int64_t step);
/* The rows of one micro-batch, borrowed until the next call that asks for another epoch. Returns their number. */
int64_t rh_sampler_rows(struct rh_sampler *sampler, int64_t epoch, int64_t step, int64_t micro_batch, const int64_t **rows);

/* -EINVAL for more than a micro-batch may have. */
int rh_batch_check_tokens(int64_t tokens) RH_MUST;

/* Upper bounds on any micro-batch of `batch` rows: sums over the `batch` largest rows, whatever the order. For plans and reservations. */
struct rh_batch_limits {
	int64_t tokens, documents, trained, longest;
	int64_t pixels; /* numbers that come with each token; 0: texts */
	int64_t judged; /* documents, or 0: none is judged */
};
int rh_dataset_limits(const struct rh_dataset *dataset, int64_t batch, struct rh_batch_limits *out) RH_MUST;

/* One micro-batch as the devices see it: rows laid end to end, no padding. Zeroed before its first use. */
struct rh_batch {
	int64_t tokens, documents, trained;
	int64_t longest;    /* document */
	int32_t *ids;       /* (tokens) */
	int32_t *position;  /* (tokens) restarts at 0 in each document */
	int32_t *start;     /* (documents + 1) first token of each */
	int32_t *head_row;  /* (trained) the token whose logits are needed: the one before the target */
	int32_t *target;    /* (trained) */
	int32_t *type;      /* (tokens) of the token: 0, or 1 in the second of two texts */
	int is_typed;       /* the model has types */
	float *pixel;       /* (tokens, pixels) */
	int64_t pixels;     /* 0: texts */
	int32_t *sample;    /* (documents) the dataset's row that each belongs to */
	int32_t *span;      /* (documents, RH_SPANS) of struct rh_judged */
	float *reference;   /* (documents) */
	int is_judged;      /* there are these two: rh_batch_reserve's limits say so */
	int names_samples;  /* set by the caller: `sample` is sent with the batch */
	uint32_t draw;      /* set by the caller: of hidden tokens, epoch + 1; 0: an evaluation, always the same */
	size_t capacity[10]; /* of the arrays, in items */
};
/* Makes room once, so that rh_batch_make never allocates for batches within the limits. */
int rh_batch_reserve(struct rh_batch *batch, const struct rh_batch_limits *limits) RH_MUST;
/* `batch` is reused: its arrays grow as needed and are freed with rh_batch_free. -EINVAL when the rows hold 2^31 tokens or more, or one is
 * a damaged image. */
int rh_batch_make(const struct rh_dataset *dataset, const int64_t *rows, int64_t count, struct rh_batch *batch) RH_MUST;
/* The same without reading images' pixels: for callers that need only sizes. */
int rh_batch_outline(const struct rh_dataset *dataset, const int64_t *rows, int64_t count, struct rh_batch *batch) RH_MUST;
/* For a batch received from another box: do its counts fit its arrays? Could rh_batch_make have written its numbers, for a model with
 * this vocabulary and this many outputs of the head? */
int rh_batch_has_room(const struct rh_batch *batch);
int rh_batch_is_sound(const struct rh_batch *batch, int64_t vocabulary, int64_t outputs);
void rh_batch_free(struct rh_batch *batch);

#endif
