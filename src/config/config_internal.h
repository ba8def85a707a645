/* Inside src/config: the table of keys, values as written, and the draft they are set in. */
#ifndef RH_CONFIG_INTERNAL_H
#define RH_CONFIG_INTERNAL_H

#include "config/config.h"
#include "core/text.h"

enum config_type {
	KEY_STRING,   /* char *, NULL when unset */
	KEY_INTEGER,  /* int64_t, 0 when unset */
	KEY_SEED,     /* uint64_t */
	KEY_REAL,     /* double, 0 when unset */
	KEY_STEPS,    /* double: below 1 a share of all steps, else whole */
	KEY_BOOL,     /* int */
	KEY_TRISTATE, /* enum rh_choice */
	KEY_CHOICE,   /* an enum in the order of `choices`, -1 when unset */
	KEY_SIZE,     /* int64_t bytes, 0 when unset */
	KEY_CUTS,     /* int64_t *, with its count beside it */
	KEY_TARGETS,  /* lora_target_modules */
	KEY_LIST,     /* struct rh_list: words, or none */
	KEY_PATHS,    /* struct rh_list: one path, or a list of them */
	KEY_TEXTS,    /* struct rh_list: one text, or a list of them */
	KEY_MAP,      /* struct rh_list: "name=value" */
	KEY_WORDS,    /* int: a bit for each of `choices`, none for none */
	KEY_RESUME,   /* char *: NULL, "true" or a path */
	KEY_INERT     /* no field: accepted, and a line says that it has no effect */
};

enum config_verb {
	VERB_TRAIN = 1,
	VERB_PLAN = 2,
	VERB_DOCTOR = 4,
	VERB_GENERATE = 8,
	VERB_EVAL = 16,
	VERB_KEYS = 32,
	VERB_INSPECT = 64,
	VERB_CHAT = 128,
	VERB_MERGE = 256,
	VERB_EXPORT = 512,
	VERB_JOIN = 1024,
	VERB_STRESS = 2048,
	VERB_VERIFY = 4096,
	VERB_SPEAKS = VERB_GENERATE | VERB_CHAT,
	VERB_WRITES = VERB_MERGE | VERB_EXPORT,
	VERB_FORECASTS = VERB_PLAN | VERB_STRESS,
	VERB_REPLACES = VERB_WRITES | VERB_JOIN | VERB_INSPECT | VERB_DOCTOR | VERB_FORECASTS, /* --force */
	VERB_RUNS = VERB_TRAIN | VERB_FORECASTS | VERB_VERIFY,
	VERB_DATA = VERB_RUNS | VERB_EVAL | VERB_INSPECT,
	VERB_ALL = 8191,
	VERB_MACHINE = VERB_ALL & ~(VERB_KEYS | VERB_JOIN),
	VERB_MODEL = VERB_MACHINE & ~VERB_DOCTOR, /* a model's keys: doctor has none */
	VERB_PACKS = VERB_MODEL & ~VERB_WRITES    /* who holds weights in memory */
};

enum config_bounds { BOUND_CLOSED = 0, BOUND_ABOVE_LEAST = 1, BOUND_BELOW_MOST = 2 };

struct config_key {
	const char *name; /* ends in '*' : a prefix (KEY_INERT only) */
	enum config_type type;
	unsigned verbs;             /* enum config_verb: who has a use for it */
	size_t offset;              /* in struct config_draft */
	const char *fallback;       /* the default as a person would write it; NULL: unset */
	double least, most;         /* of numbers, also those in a list, and of sizes: both finite */
	int bounds;                 /* enum config_bounds */
	enum config_type items;     /* KEY_LIST: KEY_INTEGER, KEY_REAL or, of words, KEY_STRING */
	const char *const *choices; /* KEY_CHOICE: in the order of the enum; KEY_WORDS: in that of the bits. NULL-terminated */
	int lora;                   /* enum rh_lora_key or 0 */
	int or_none;                /* KEY_SIZE: 0, none and off are 0 */
	int per_box;                /* each of several boxes has its own: boxes need not agree */
	int unprinted;              /* folded into another key of the resolved configuration */
	const char *refuse_null;    /* what to write instead, where null would mean something else to a Hugging Face user */
	const char *help;           /* meaning; KEY_INERT: why it has no effect */
	const char *heading;        /* opens a group in --help and in the printed configuration */
};

extern const struct config_key config_keys[];
extern const size_t config_key_count;

/* A key of another trainer, and what there is to say of it. */
enum config_elsewhere_how {
	ELSEWHERE_OTHER,   /* what it means here, if anything, is written otherwise */
	ELSEWHERE_SAME,    /* the same values under `key` */
	ELSEWHERE_ACCEPTED /* another name for `key`, taken as it */
};
struct config_elsewhere {
	const char *names; /* with blanks between; one that ends in '*' is a prefix */
	const char *key;   /* what they are called here, or what comes nearest; NULL: nothing */
	const char *note;  /* what else there is to say; NULL only where there is a key */
	enum config_elsewhere_how how;
};
extern const struct config_elsewhere config_elsewhere[];
extern const size_t config_elsewheres;
/* The entry of a name; NULL: there is none. */
const struct config_elsewhere *config_elsewhere_find(const char *name);
/* Moves *names to its next name, and returns its length; 0: there are no more. */
size_t config_elsewhere_next(const char **names);

/* Index into config_keys of a name as written (aliases and prefixes resolved), -1 if there is none. */
int config_key_find(const char *name);
/* The key that `name` is another accepted name of, else `name`. */
const char *config_alias_key(const char *name);
/* What a value of this key must be: "a whole number from 1 to 64". */
void config_key_describe(const struct config_key *key, char *out, size_t bytes);
/* enum config_verb of a verb's name; VERB_ALL for an unknown one. */
unsigned config_verb_bit(const char *verb);

/* A value as written. */
enum config_kind { VALUE_NULL, VALUE_SCALAR, VALUE_LIST, VALUE_MAP, VALUE_NESTED, VALUE_BARE };
enum config_origin { ORIGIN_FILE, ORIGIN_FLAG };

/* "unknown key ...", and what to write instead: what another trainer's name is called here, else the nearest key of this verb (in a file:
 * of any, as it may serve several), in whole or by a run of its words: edits are insert, delete, replace, swap neighbours. What is far
 * from all is said to be. */
void config_suggest(const char *name, const char *verb, enum config_origin origin, char *out, size_t bytes);
/* Of a path at which nothing is: "; there is run.yaml", the nearest name in its directory; empty where none is near. Returns `out`. */
enum { RH_NEAR_BYTES = 512 };
const char *config_near_file(const char *path, char out[RH_NEAR_BYTES]);

struct config_entry {
	int key;    /* index into config_keys */
	char *name; /* as written: an alias or an inert key's own name */
	enum config_origin origin;
	const char *path; /* borrowed; NULL on the command line */
	int64_t line;
	enum config_kind kind;
	char *text;           /* VALUE_SCALAR */
	struct rh_list items; /* VALUE_LIST; VALUE_MAP: "name=value" */
};

struct config_entries {
	const char *verb; /* that they are read for; borrowed */
	struct config_entry *entry;
	size_t count, capacity;
	struct rh_text unknown; /* what a file has that is no key, a line each */
	int64_t unknowns;
};

/* Appends an entry for the key named `name`, with no value yet. -EINVAL: unknown, or given before by the same origin. What a file has that
 * is unknown is kept for config_entries_check, and *out is NULL. */
int config_entries_add(struct config_entries *entries, const char *name, enum config_origin origin, const char *path, int64_t line,
                       struct config_entry **out) RH_MUST;
/* -EINVAL where the file has unknown keys: several are told in a line each before. */
int config_entries_check(const struct config_entries *entries) RH_MUST;
void config_entries_free(struct config_entries *entries);
/* rh_fail with "where: key: " before the line. */
int config_entry_fail(const struct config_entry *entry, const char *format, ...) RH_PRINTF(2, 3);

/* The profiles of examples/hardware as the program holds them: the Makefile writes the files' text into hardware_profiles.c of the build
 * folder. A NULL name ends them. */
struct config_profile {
	const char *name, *text;
};
extern const struct config_profile config_profiles[];
/* Likewise the config.json of each folder of examples/models, by the folder's name (model_shapes.c of the build folder). */
extern const struct config_profile config_models[];

int config_list_append(struct rh_list *list, const char *text) RH_MUST;
void config_list_free(struct rh_list *list);

/* One YAML document that is a mapping, into entries. `path` names it in errors and is borrowed by the entries. */
int config_yaml_read(const char *bytes, size_t length, const char *path, struct config_entries *entries) RH_MUST;
/* "a, b" or "[a, b]" into words, "{a: b}" into "a=b", by YAML's rules. */
int config_yaml_words(const char *text, struct rh_list *words) RH_MUST;
/* The command line after the verb, up to --help; sets json and help of *config. *path: CONFIG.yaml, the first word or one that ends in
 * .yaml or .yml, borrowed; NULL: none. */
int config_flags_read(int argc, char **argv, struct config_entries *entries, struct rh_config *config, const char **path) RH_MUST;

/* Keys that the resolved configuration holds in another form stand beside it until then. */
struct config_draft {
	struct rh_config config;
	int bf16, fp16;
	enum rh_choice use_peft;
	int dtype;                                          /* enum config_dtype, -1 unset */
	int quantize, load_in_4bit, load_in_8bit, bnb_type; /* enum config_quantize; bnb_type: CONFIG_NF4 or CONFIG_FP4, -1 unset */
	enum rh_choice bnb_nested;
};
enum config_quantize {
	QUANTIZE_NONE,
	QUANTIZE_NF4,
	QUANTIZE_FP4,
	QUANTIZE_INT8,
	QUANTIZE_FP8,
	QUANTIZE_Q4_0,
	QUANTIZE_Q8_0,
	QUANTIZE_MXFP4,
	QUANTIZES
};
/* The form that each word means; second: with scales that are quantised too. */
extern const enum rh_form config_forms[QUANTIZES][2];
enum config_dtype { DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_FLOAT16 };

/* The whole of `text`, or -EINVAL, or -ERANGE where the type cannot hold it; no line is made. Reals are finite decimals; sizes are bytes,
 * "24GiB", "1.5 GB"; truth values are true, false, yes, no in three cases. */
int config_parse_real(const char *text, double *out) RH_MUST;
int config_parse_integer(const char *text, int64_t *out) RH_MUST;
int config_parse_size(const char *text, int64_t *bytes) RH_MUST;
int config_parse_bool(const char *text, int *out) RH_MUST;

/* Sets the field of entry->key from the entry. */
int config_value_set(struct config_draft *draft, const struct config_entry *entry) RH_MUST;
/* Sets the field of a key that nobody gave from its fallback. */
int config_value_default(struct config_draft *draft, int key) RH_MUST;

/* Resolves what depends on several keys and refuses contradictions. given[key]: the entry that counts, or NULL. */
int config_resolve(struct config_draft *draft, const char *verb, const struct config_entry *const *given,
                   const char *(*default_device)(void)) RH_MUST;

/* The part of config_resolve for the keys of several boxes. */
int config_resolve_boxes(struct config_draft *draft, const struct config_entry *const *given, int runs) RH_MUST;
/* The part of config_resolve for losses over preferences. runs: the verb trains, or plans to. */
int config_resolve_preference(struct config_draft *draft, const struct config_entry *const *given, int runs) RH_MUST;
/* Fills in box and boxes, where they are 0, as a launcher says in the environment. -EINVAL: what it says cannot be. */
int config_ask_ranks(struct rh_config *config) RH_MUST;
/* Fills in the address between boxes 1 and 2 where it is unset: torchrun says where the first process is. -EINVAL likewise. */
int config_ask_addresses(struct rh_config *config) RH_MUST;
/* The part of config_resolve for the keys that name files. */
int config_resolve_paths(struct config_draft *draft, unsigned verb, const struct config_entry *const *given) RH_MUST;

/* `text` fit for one line of an error: control characters replaced, cut at 200 bytes. */
struct config_shown {
	char text[208];
};
struct config_shown config_show(const char *text);

/* Whether `text` is valid UTF-8. */
int config_utf8_valid(const char *text);

/* scheduler.c. Sets lr_shape from lr_scheduler_kwargs; refuses words of another lr_scheduler_type and values out of range. Either entry may
 * be NULL: not given. */
int config_resolve_scheduler(struct rh_config *config, const struct config_entry *type, const struct config_entry *kwargs) RH_MUST;

#endif
