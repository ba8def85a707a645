/* The part of Jinja2 that chat templates use, rendering byte for byte as transformers does: an immutable sandbox with trim_blocks,
 * lstrip_blocks, {% break %}, {% continue %}, {% generation %}, its own tojson, raise_exception and strftime_now. Not here: other files
 * (include, import, extends), blocks, autoescape, arithmetic with integers beyond 64 bits. A template is untrusted: it reads no file,
 * sees no attribute that begins with an underscore, changes nothing it is given, and its steps, depth, memory and output are bounded. */
#ifndef RH_JINJA_JINJA_H
#define RH_JINJA_JINJA_H

#include "core/json.h"
#include "core/text.h"

struct rh_jinja;

/* Compiles `text` (borrowed for the call only). -EINVAL names `where`, line and column. A compiled template is immutable. */
int rh_jinja_open(const char *text, size_t length, const char *where, struct rh_jinja **out) RH_MUST;
void rh_jinja_close(struct rh_jinja *jinja);

/* Whether the template marks what the assistant wrote with {% generation %}. */
int rh_jinja_has_generation(const struct rh_jinja *jinja);
/* Whether the template reads a variable, or an attribute, called `name`. */
int rh_jinja_reads(const struct rh_jinja *jinja, const char *name);
/* Whether some literal text or string of the template holds `text`. */
int rh_jinja_writes(const struct rh_jinja *jinja, const char *text);

/* Byte ranges of the output that {% generation %} blocks wrote. */
struct rh_jinja_span {
	size_t first, end;
};
struct rh_jinja_spans {
	struct rh_jinja_span *span;
	size_t count, capacity;
	int is_hidden; /* a block stood inside a macro or {% set %}: where its text went is unknown */
};
void rh_jinja_spans_free(struct rh_jinja_spans *spans);

struct rh_jinja_bounds {
	uint64_t steps; /* nodes evaluated, and a share for the bytes they handle */
	size_t memory;  /* bytes of values */
	size_t output;  /* bytes rendered */
	unsigned depth; /* nodes within nodes, macros' included */
};
/* Enough for a conversation of a million tokens. */
extern const struct rh_jinja_bounds rh_jinja_default_bounds;

struct rh_jinja_input {
	const json_t *variables;              /* an object; borrowed for the call */
	const char *date;                     /* "2024-07-26", what strftime_now formats (at midnight) */
	const struct rh_jinja_bounds *bounds; /* NULL: the default */
	int *writes_none;                     /* set to 1 where the template writes a none as text, "None"; may be NULL */
};
/* Appends the rendering to `out`. `spans` may be NULL, else they count from out's start. A fault is -EINVAL with the message that Jinja2's
 * exception has, after "where: chat template, line N: "; rh_jinja_fault() is the message alone. */
int rh_jinja_render(const struct rh_jinja *jinja, const struct rh_jinja_input *input, const char *where, struct rh_text *out,
                    struct rh_jinja_spans *spans) RH_MUST;
/* Of the calling thread's last failed open or render, whole; valid until its next. */
const char *rh_jinja_fault(void);

#endif
