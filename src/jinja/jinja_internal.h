/* Values, syntax tree and the state of a compilation or a rendering.
 *
 * Faults: everything that a compilation or a rendering allocates is in its arena, so a fault jumps to the entry (jinja_raise), which frees
 * the arena. No function below returns an error code, and none owns anything. */
#ifndef RH_JINJA_JINJA_INTERNAL_H
#define RH_JINJA_JINJA_INTERNAL_H

#include "jinja/jinja.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdnoreturn.h>

/* Where faults go, and the memory of one compilation or rendering. */
struct jinja_chunk;
struct jinja_arena {
	struct jinja_chunk *chunk;
	size_t free_bytes;       /* bytes of it */
	size_t allocated, limit; /* bytes in all, and the bound */
	jmp_buf *entry;
	int rc; /* of the fault */
};
/* Zeroed; never NULL. */
void *jinja_take(struct jinja_arena *arena, size_t count, size_t size);
void jinja_arena_free(struct jinja_arena *arena);
/* Keeps the message (as Python's str(exception) is), sets rc to -EINVAL and jumps. */
noreturn void jinja_raise(struct jinja_arena *arena, const char *format, ...) RH_PRINTF(2, 3);
noreturn void jinja_raise_bytes(struct jinja_arena *arena, const char *bytes, size_t length);
noreturn void jinja_fail(struct jinja_arena *arena, int rc);

/* ---- Values, with Python's types ---- */

enum jinja_kind {
	JINJA_MISSING, /* no value: an argument left out, a scope without the name */
	JINJA_UNDEFINED,
	JINJA_NONE,
	JINJA_BOOL,
	JINJA_INT,
	JINJA_FLOAT,
	JINJA_STRING,
	JINJA_LIST,
	JINJA_TUPLE,
	JINJA_DICT,
	JINJA_VIEW, /* dict_keys, dict_values, dict_items */
	JINJA_RANGE,
	JINJA_GENERATOR, /* read once */
	JINJA_NAMESPACE,
	JINJA_MACRO,
	JINJA_FUNCTION, /* a global */
	JINJA_METHOD,   /* bound to its object */
	JINJA_LOOP,
	JINJA_CYCLER,
	JINJA_JOINER,
	JINJA_WIDE, /* a whole number beyond 64 bits: its digits, which are compared and written alone */
};

struct jinja_value {
	enum jinja_kind kind;
	uint8_t is_markup; /* a string that `safe` or `escape` made */
	union {
		int64_t integer; /* also a boolean */
		double real;
		const struct jinja_string *string; /* also the digits of a wide number */
		struct jinja_list *list;           /* list, tuple, view, range, generator */
		struct jinja_dict *dict;           /* dict, namespace */
		const struct jinja_undefined *undefined;
		const struct jinja_macro *macro;
		const struct jinja_function *function;
		const struct jinja_method *method;
		struct jinja_loop *loop;
		struct jinja_cycler *cycler;
	} content;
};

struct jinja_string {
	const char *bytes; /* UTF-8, may hold NUL */
	size_t length;
};
struct jinja_list {
	struct jinja_value *item;
	size_t count, capacity;
	size_t next;               /* generator: the next */
	const char *type;          /* view: "dict_items" and so on */
	int64_t start, stop, step; /* range */
};
struct jinja_pair {
	struct jinja_value key, value;
};
struct jinja_dict {
	struct jinja_pair *pair; /* in order of insertion */
	size_t count, capacity;
};
struct jinja_undefined {
	const char *hint; /* the whole message; else it is made of the next two */
	struct jinja_value object, name;
	int is_plain; /* a variable: no object */
};
struct jinja_cycler {
	struct jinja_list *list;
	size_t next;
	int used; /* joiner */
	struct jinja_value separator;
};

/* ---- Syntax ---- */

struct jinja_symbol {
	const char *name;
	size_t length;
	struct jinja_symbol *next;
};

enum jinja_node_kind {
	/* expressions */
	NODE_CONST,     /* value */
	NODE_NAME,      /* name */
	NODE_TUPLE,     /* items */
	NODE_LIST,      /* items */
	NODE_DICT,      /* items: key, value, key, value... */
	NODE_ATTRIBUTE, /* left.name */
	NODE_ITEM,      /* left[right] */
	NODE_SLICE,     /* left:right:third, each may be NULL */
	NODE_CALL,      /* left(arguments) */
	NODE_FILTER,    /* left|filter(arguments); left NULL: what a filter block holds */
	NODE_TEST,      /* left is test(arguments) */
	NODE_NOT,
	NODE_NEGATIVE,
	NODE_POSITIVE,
	NODE_AND,
	NODE_OR,
	NODE_IF_ELSE, /* left if right else third */
	NODE_CONCAT,  /* items, joined by ~ */
	NODE_BINARY,  /* left op right */
	NODE_COMPARE, /* left, then items; op of each in its `op` and expression in its `left` */
	NODE_OPERAND,
	NODE_NAMESPACE_TARGET, /* name.other */
	/* statements */
	NODE_DATA,         /* value */
	NODE_OUTPUT,       /* left */
	NODE_FOR,          /* left in right if third: body; orelse; is_flagged: recursive */
	NODE_IF,           /* items: condition, NODE_BODY, ... and orelse */
	NODE_BODY,         /* body */
	NODE_SET,          /* left = right */
	NODE_SET_BLOCK,    /* left = body through the filters of right */
	NODE_MACRO,        /* macro */
	NODE_CALL_BLOCK,   /* left is the call, macro the caller */
	NODE_FILTER_BLOCK, /* right, body */
	NODE_WITH,         /* items: target, value, ...; body */
	NODE_GENERATION,   /* body */
	NODE_BREAK,
	NODE_CONTINUE,
};

enum jinja_op { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOOR, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN };

struct jinja_nodes {
	struct jinja_node **node;
	size_t count, capacity;
};
struct jinja_arguments {
	struct jinja_nodes positional, keyword; /* a keyword's name is its node's `keyword` */
	struct jinja_node *star, *star_star;
};
struct jinja_node {
	enum jinja_node_kind kind;
	enum jinja_op op;
	int line, column;
	int is_flagged;
	const struct jinja_symbol *name, *second_name, *keyword;
	struct jinja_value value;
	struct jinja_node *left, *right, *third;
	struct jinja_nodes items, body, orelse;
	struct jinja_arguments *arguments;
	struct jinja_macro_form *macro;
	const struct jinja_filter *filter; /* NULL: there is none of that name */
	const struct jinja_test *test;
};
struct jinja_macro_form {
	const struct jinja_symbol *name; /* NULL: a caller */
	struct jinja_nodes parameters;   /* NODE_NAME, its `right` the default or NULL */
	struct jinja_nodes body;
	int reads_caller, reads_kwargs, reads_varargs;
};

struct rh_jinja {
	struct jinja_arena arena;
	struct jinja_nodes body;
	struct jinja_symbol *symbols;
	const struct jinja_symbol *loop, *caller, *kwargs, *varargs;
	struct jinja_nodes literals; /* strings and data, for rh_jinja_writes */
	int has_generation;
};
const struct jinja_symbol *jinja_symbol(struct rh_jinja *jinja, const char *name, size_t length);
void jinja_push_node(struct jinja_arena *arena, struct jinja_nodes *nodes, struct jinja_node *node);

/* Tokens: lex.c */
enum jinja_token_kind {
	TOKEN_DATA,
	TOKEN_OPEN_VARIABLE,
	TOKEN_CLOSE_VARIABLE,
	TOKEN_OPEN_BLOCK,
	TOKEN_CLOSE_BLOCK,
	TOKEN_NAME,
	TOKEN_STRING,
	TOKEN_INTEGER,
	TOKEN_FLOAT,
	TOKEN_OPERATOR,
	TOKEN_END
};
struct jinja_token {
	enum jinja_token_kind kind;
	int line, column;
	struct jinja_string text; /* of data and strings as they mean, of the rest as written */
	int64_t integer;
	double real;
};
struct jinja_tokens {
	struct jinja_token *token; /* the last is TOKEN_END */
	size_t count, capacity;
};
void jinja_lex(struct jinja_arena *arena, const char *text, size_t length, struct jinja_tokens *out);
noreturn void jinja_raise_at(struct jinja_arena *arena, int line, int column, const char *format, ...) RH_PRINTF(4, 5);

/* parse.c and parse_expression.c */
struct jinja_parser {
	struct rh_jinja *jinja;
	struct jinja_arena *arena;
	const struct jinja_token *token;  /* the current one */
	const struct jinja_token *tag;    /* the name of the innermost statement */
	struct jinja_macro_form *macro;   /* the innermost being read */
	const struct jinja_node *unknown; /* the frame's first filter or test that is none, and that no condition may leave out */
	int depth, loops;
};
struct jinja_node *jinja_node(struct jinja_parser *parser, enum jinja_node_kind kind);
int jinja_at_name(const struct jinja_parser *parser, const char *name);
int jinja_at_operator(const struct jinja_parser *parser, const char *text);
int jinja_skip_name(struct jinja_parser *parser, const char *name);
int jinja_skip_operator(struct jinja_parser *parser, const char *text);
void jinja_expect_operator(struct jinja_parser *parser, const char *text);
const struct jinja_symbol *jinja_expect_name(struct jinja_parser *parser);
noreturn void jinja_unexpected(struct jinja_parser *parser, const char *wanted);
enum jinja_conditional { JINJA_WITH_IF, JINJA_WITHOUT_IF };
struct jinja_node *jinja_parse_expression(struct jinja_parser *parser, enum jinja_conditional conditional);
/* a, b, c or one expression; `end` is a name that ends it ("in", "recursive") or NULL. */
struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, enum jinja_conditional conditional, const char *end);
struct jinja_node *jinja_parse_target(struct jinja_parser *parser, int with_namespace);
/* The filters after `node`, which may be NULL; is_inline: the first has no bar before it. */
struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, struct jinja_node *node, int is_inline);

/* ---- Rendering ---- */

struct jinja_variable {
	const struct jinja_symbol *name;
	struct jinja_value value;
};
struct jinja_scope {
	struct jinja_scope *outer;
	struct jinja_variable *variable;
	size_t count, capacity;
};
struct jinja_macro {
	const struct jinja_macro_form *form;
	struct jinja_scope *scope;
};
struct jinja_loop {
	struct jinja_value iterable;
	struct jinja_list *list;
	size_t index0;
	int64_t depth0;
	const struct jinja_node *node; /* recursive: called again */
	struct jinja_scope *scope;     /* around the loop */
	struct jinja_value changed;
};

/* Arguments of a call, evaluated. */
struct jinja_call {
	struct jinja_value *argument;
	size_t count;
	struct jinja_pair *keyword;
	size_t keywords;
};

struct jinja_buffer {
	char *bytes;
	size_t length, capacity;
};
struct jinja {
	struct jinja_arena arena;
	const struct rh_jinja *form;
	const struct rh_jinja_input *input;
	struct rh_jinja_bounds bounds;
	uint64_t steps;
	unsigned depth;
	int line;
	struct jinja_scope *scope, *root;
	struct jinja_buffer *out, *page; /* where text goes; the page is the rendering itself */
	struct jinja_list *spans;        /* of integers: first, end, ... */
	int is_hidden, writes_none;
};
typedef struct jinja_value jinja_native(struct jinja *j, const struct jinja_call *call);
struct jinja_function {
	const char *name;
	jinja_native *call;
};
struct jinja_method {
	struct jinja_value self;
	const struct jinja_method_form *form;
};
struct jinja_method_form {
	const char *name;
	struct jinja_value (*call)(struct jinja *j, struct jinja_value self, const struct jinja_call *call);
};
struct jinja_filter {
	const char *name;
	struct jinja_value (*call)(struct jinja *j, struct jinja_value value, const struct jinja_call *call);
};
struct jinja_test {
	const char *name;
	int (*call)(struct jinja *j, struct jinja_value value, const struct jinja_call *call);
};

/* Counts `steps`; faults where the bound is passed. */
void jinja_step(struct jinja *j, uint64_t steps);
void jinja_enter(struct jinja *j);
void jinja_leave(struct jinja *j);

/* value.c */
struct jinja_value jinja_none(void);
struct jinja_value jinja_bool(int is_true);
struct jinja_value jinja_int(int64_t integer);
struct jinja_value jinja_float(double real);
struct jinja_value jinja_string(struct jinja *j, const char *bytes, size_t length); /* borrows the bytes */
struct jinja_value jinja_text(struct jinja *j, const char *text);                   /* borrows, to its NUL */
struct jinja_value jinja_copy(struct jinja *j, const struct jinja_buffer *buffer);  /* takes over */
struct jinja_value jinja_new_list(struct jinja *j, enum jinja_kind kind);
struct jinja_value jinja_new_dict(struct jinja *j, enum jinja_kind kind);
struct jinja_value jinja_undefined_name(struct jinja *j, const char *name);
struct jinja_value jinja_undefined_of(struct jinja *j, struct jinja_value object, struct jinja_value name);
struct jinja_value jinja_undefined_hint(struct jinja *j, const char *format, ...) RH_PRINTF(2, 3);
struct jinja_value jinja_from_json(struct jinja *j, const json_t *json);
void jinja_push(struct jinja *j, struct jinja_list *list, struct jinja_value value);
/* The value at `key`, or NULL. An unhashable key is a TypeError. */
struct jinja_value *jinja_dict_find(struct jinja *j, const struct jinja_dict *dict, struct jinja_value key);
struct jinja_value *jinja_dict_find_text(const struct jinja_dict *dict, const char *key);
void jinja_dict_set(struct jinja *j, struct jinja_dict *dict, struct jinja_value key, struct jinja_value value);
int jinja_truth(struct jinja *j, struct jinja_value value);
int jinja_equal(struct jinja *j, struct jinja_value left, struct jinja_value right);
/* Of `left < right` and the like by op; a TypeError where Python has no order. */
int jinja_ordered(struct jinja *j, enum jinja_op op, struct jinja_value left, struct jinja_value right);
int jinja_contains(struct jinja *j, struct jinja_value container, struct jinja_value item);
const char *jinja_type(struct jinja_value value); /* type(value).__name__ */
int jinja_is_text(struct jinja_value value, const char *text);
int jinja_is_number(struct jinja_value value); /* booleans too */
double jinja_real(struct jinja_value number);
noreturn void jinja_raise_undefined(struct jinja *j, struct jinja_value undefined);
void jinja_need_defined(struct jinja *j, struct jinja_value value);
/* len(value); -1 where there is none */
int64_t jinja_length(struct jinja_value value);
/* Its items as a list of their own (a generator's, once); a TypeError where it is not iterable. */
struct jinja_list *jinja_items(struct jinja *j, struct jinja_value value);
struct jinja_value jinja_pair_of(struct jinja *j, struct jinja_value first, struct jinja_value second); /* a tuple */

/* text.c: a growing run of bytes, str(), repr(), code points */
void jinja_put(struct jinja *j, struct jinja_buffer *buffer, const char *bytes, size_t length);
void jinja_put_text(struct jinja *j, struct jinja_buffer *buffer, const char *text);
void jinja_put_string(struct jinja *j, struct jinja_buffer *buffer, struct jinja_string string);
void jinja_put_code(struct jinja *j, struct jinja_buffer *buffer, int32_t code);
void jinja_put_str(struct jinja *j, struct jinja_buffer *buffer, struct jinja_value value);
void jinja_put_repr(struct jinja *j, struct jinja_buffer *buffer, struct jinja_value value);
void jinja_put_float(struct jinja *j, struct jinja_buffer *buffer, double real);
struct jinja_string jinja_str(struct jinja *j, struct jinja_value value);
const char *jinja_repr(struct jinja *j, struct jinja_value value); /* for messages */
size_t jinja_code_length(const char *at);                          /* bytes of the code point there */
int32_t jinja_code_at(const char *at, size_t left);
int64_t jinja_count_codes(struct jinja_string string);
/* The bytes before code point `index`, at most the string's. */
size_t jinja_code_offset(struct jinja_string string, int64_t index);
int jinja_is_space(int32_t code);

/* case.c */
enum jinja_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITALIZE, CASE_SWAP };
struct jinja_value jinja_recase(struct jinja *j, struct jinja_string string, enum jinja_case to);
int jinja_is_class(struct jinja_string string, const char *method); /* "isalpha" and so on */

/* number.c: arithmetic, conversions */
struct jinja_value jinja_binary(struct jinja *j, enum jinja_op op, struct jinja_value left, struct jinja_value right);
/* HTML-escaped, as markup; markup stays. */
struct jinja_value jinja_escape(struct jinja *j, struct jinja_value value);
struct jinja_value jinja_negate(struct jinja *j, struct jinja_value value, int sign);
/* int(value) for arguments: a TypeError names `value`'s type. */
int64_t jinja_index(struct jinja *j, struct jinja_value value);
int jinja_parse_int(struct jinja_string string, int base, int64_t *out);
int jinja_parse_float(struct jinja_string string, double *out);

/* format.c: '%s' % x, '{}'.format(x) */
struct jinja_value jinja_percent(struct jinja *j, struct jinja_string form, struct jinja_value arguments);
struct jinja_value jinja_format(struct jinja *j, struct jinja_string form, const struct jinja_call *call);

/* json.c */
struct jinja_value jinja_tojson(struct jinja *j, struct jinja_value value, const struct jinja_call *call);

/* attribute.c */
struct jinja_value jinja_attribute(struct jinja *j, struct jinja_value object, struct jinja_value name);
struct jinja_value jinja_item(struct jinja *j, struct jinja_value object, struct jinja_value key);
struct jinja_value jinja_slice(struct jinja *j, struct jinja_value object, const struct jinja_value *bound); /* start, stop, step */

/* method.c, method_string.c */
const struct jinja_method_form *jinja_find_method(struct jinja_value object, const char *name);
const struct jinja_method_form *jinja_find_string_method(const char *name);
struct jinja_string jinja_strip(struct jinja *j, struct jinja_string string, struct jinja_value characters,
                                int sides); /* 1 left, 2 right */
struct jinja_value jinja_replace(struct jinja *j, struct jinja_string string, struct jinja_string old, struct jinja_string fresh,
                                 int64_t most);

/* call.c: arguments, calls, macros, globals */
struct jinja_value jinja_call_value(struct jinja *j, struct jinja_value callee, const struct jinja_call *call);
struct jinja_value jinja_find_global(struct jinja *j, const char *name);
/* Argument `index`, or keyword `name` (NULL: positional only); MISSING where it is not given. */
struct jinja_value jinja_argument(const struct jinja_call *call, size_t index, const char *name);
int64_t jinja_argument_int(struct jinja *j, const struct jinja_call *call, size_t index, const char *name, int64_t otherwise);
int jinja_argument_bool(struct jinja *j, const struct jinja_call *call, size_t index, const char *name, int otherwise);
struct jinja_string jinja_argument_text(struct jinja *j, const struct jinja_call *call, size_t index, const char *name,
                                        const char *otherwise);
/* A TypeError unless there are between `least` and `most` arguments. */
void jinja_need_count(struct jinja *j, const struct jinja_call *call, const char *name, size_t least, size_t most);

/* evaluate.c, execute.c */
struct jinja_value jinja_evaluate(struct jinja *j, const struct jinja_node *node);
struct jinja_value jinja_apply_filter(struct jinja *j, const struct jinja_node *node, struct jinja_value value);
struct jinja_call jinja_evaluate_arguments(struct jinja *j, const struct jinja_arguments *arguments, struct jinja_value caller);
void jinja_execute(struct jinja *j, const struct jinja_nodes *body);
struct jinja_scope *jinja_scope_open(struct jinja *j, struct jinja_scope *outer);
void jinja_assign(struct jinja *j, struct jinja_scope *scope, const struct jinja_symbol *name, struct jinja_value value);
struct jinja_value jinja_loop_call(struct jinja *j, const struct jinja_loop *loop, struct jinja_value iterable);
/* Text that `body` writes, as a value. */
struct jinja_value jinja_capture(struct jinja *j, const struct jinja_nodes *body, struct jinja_scope *scope);

/* filter.c, filter_list.c, test.c */
const struct jinja_filter *jinja_find_filter(const char *name, size_t length);
const struct jinja_filter *jinja_find_list_filter(const char *name, size_t length);
const struct jinja_test *jinja_find_test(const char *name, size_t length);

#endif
