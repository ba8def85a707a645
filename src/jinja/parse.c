/* Statements. */
#include "core/alloc.h"
#include "jinja/jinja_internal.h"

#include <string.h>
#include <utf8proc.h>

enum { DEPTH_MOST = 120, MEMORY_MOST = 64 << 20 };

const struct jinja_symbol *jinja_symbol(struct rh_jinja *jinja, const char *name, size_t length)
{
	for (const struct jinja_symbol *s = jinja->symbols; s; s = s->next)
		if (s->length == length && !memcmp(s->name, name, length))
			return s;
	struct jinja_symbol *symbol = jinja_take(&jinja->arena, 1, sizeof *symbol);
	char *copy = jinja_take(&jinja->arena, length + 1, 1);
	memcpy(copy, name, length);
	*symbol = (struct jinja_symbol){copy, length, jinja->symbols};
	jinja->symbols = symbol;
	return symbol;
}

void jinja_push_node(struct jinja_arena *arena, struct jinja_nodes *nodes, struct jinja_node *node)
{
	if (nodes->count == nodes->capacity) {
		size_t capacity = nodes->capacity ? 2 * nodes->capacity : 4;
		struct jinja_node **wider = jinja_take(arena, capacity, sizeof *wider);
		if (nodes->count)
			memcpy(wider, nodes->node, nodes->count * sizeof *wider);
		nodes->node = wider;
		nodes->capacity = capacity;
	}
	nodes->node[nodes->count++] = node;
}

struct jinja_node *jinja_node(struct jinja_parser *parser, enum jinja_node_kind kind)
{
	struct jinja_node *node = jinja_take(parser->arena, 1, sizeof *node);
	node->kind = kind;
	node->line = parser->token->line;
	node->column = parser->token->column;
	return node;
}

static int holds(const struct jinja_token *token, const char *text)
{
	return token->text.length == strlen(text) && !memcmp(token->text.bytes, text, token->text.length);
}

int jinja_at_name(const struct jinja_parser *parser, const char *name)
{
	return parser->token->kind == TOKEN_NAME && holds(parser->token, name);
}

int jinja_at_operator(const struct jinja_parser *parser, const char *text)
{
	return parser->token->kind == TOKEN_OPERATOR && holds(parser->token, text);
}

int jinja_skip_name(struct jinja_parser *parser, const char *name)
{
	if (!jinja_at_name(parser, name))
		return 0;
	parser->token++;
	return 1;
}

int jinja_skip_operator(struct jinja_parser *parser, const char *text)
{
	if (!jinja_at_operator(parser, text))
		return 0;
	parser->token++;
	return 1;
}

noreturn void jinja_unexpected(struct jinja_parser *parser, const char *wanted)
{
	const struct jinja_token *token = parser->token;
	static const char *const names[] = {"template data", "begin of print statement", "end of print statement",
	                                    "begin of statement block", "end of statement block"};
	char got[64];
	if (token->kind == TOKEN_END)
		snprintf(got, sizeof got, "end of template");
	else if (token->kind <= TOKEN_CLOSE_BLOCK)
		snprintf(got, sizeof got, "%s", names[token->kind]);
	else
		snprintf(got, sizeof got, "'%.*s'", (int)(token->text.length < 40 ? token->text.length : 40), token->text.bytes);
	jinja_raise_at(parser->arena, token->line, token->column, "expected %s, got %s", wanted, got);
}

void jinja_expect_operator(struct jinja_parser *parser, const char *text)
{
	char wanted[16];
	snprintf(wanted, sizeof wanted, "'%s'", text);
	if (!jinja_skip_operator(parser, text))
		jinja_unexpected(parser, wanted);
}

const struct jinja_symbol *jinja_expect_name(struct jinja_parser *parser)
{
	if (parser->token->kind != TOKEN_NAME)
		jinja_unexpected(parser, "a name");
	const struct jinja_token *token = parser->token++;
	return jinja_symbol(parser->jinja, token->text.bytes, token->text.length);
}

static void parse_body(struct jinja_parser *parser, struct jinja_nodes *out, const char *const *ends);

/* Parses what follows a tag's words: "%}", then statements up to a tag that `ends` names (NULL-terminated). The current token is then that
 * tag's name. */
static void parse_block(struct jinja_parser *parser, struct jinja_nodes *out, const char *const *ends)
{
	jinja_skip_operator(parser, ":");
	if (parser->token->kind != TOKEN_CLOSE_BLOCK)
		jinja_unexpected(parser, "end of statement block");
	parser->token++;
	if (++parser->depth > DEPTH_MOST)
		jinja_raise_at(parser->arena, parser->token->line, parser->token->column, "more than %d blocks inside one another",
		               DEPTH_MOST);
	parse_body(parser, out, ends);
	parser->depth--;
}

/* As in Jinja2, a template that uses an unknown filter or test is refused. Inside an `if`, it is refused only when rendering gets there. A
 * loop, macro or other frame inside that `if` is checked on its own, as if the `if` were not there. */
static void refuse_unknown(const struct jinja_parser *parser)
{
	const struct jinja_node *node = parser->unknown;
	if (node)
		jinja_raise_at(parser->arena, node->line, node->column, "No %s named '%.60s'.", node->kind == NODE_TEST ? "test" : "filter",
		               node->name->name);
}

/* Returns what the frame around it does not know, for leave_frame. */
static const struct jinja_node *enter_frame(struct jinja_parser *parser)
{
	const struct jinja_node *outer = parser->unknown;
	parser->unknown = NULL;
	return outer;
}

static void leave_frame(struct jinja_parser *parser, const struct jinja_node *outer)
{
	refuse_unknown(parser);
	parser->unknown = outer;
}

/* The rest of a statement that is a frame of its own. */
static void parse_whole(struct jinja_parser *parser, struct jinja_nodes *out, const char *end)
{
	const char *const ends[] = {end, NULL};
	const struct jinja_node *outer = enter_frame(parser);
	parse_block(parser, out, ends);
	leave_frame(parser, outer);
	parser->token++;
}

static struct jinja_node *parse_for(struct jinja_parser *parser)
{
	static const char *const ends[] = {"endfor", "else", NULL};
	struct jinja_node *node = jinja_node(parser, NODE_FOR);
	node->left = jinja_parse_target(parser, 0);
	if (!jinja_skip_name(parser, "in"))
		jinja_unexpected(parser, "'in'");
	node->right = jinja_parse_tuple(parser, JINJA_WITHOUT_IF, "recursive");
	const struct jinja_node *outer = enter_frame(parser);
	if (jinja_skip_name(parser, "if"))
		node->third = jinja_parse_expression(parser, JINJA_WITH_IF);
	node->is_flagged = jinja_skip_name(parser, "recursive");
	parser->loops++;
	parse_block(parser, &node->body, ends);
	parser->loops--;
	leave_frame(parser, outer);
	if (jinja_skip_name(parser, "else"))
		parse_whole(parser, &node->orelse, "endfor");
	else
		parser->token++;
	return node;
}

static struct jinja_node *parse_if(struct jinja_parser *parser)
{
	static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif", NULL};
	const struct jinja_node *unknown = parser->unknown;
	struct jinja_node *node = jinja_node(parser, NODE_IF);
	for (;;) {
		jinja_push_node(parser->arena, &node->items, jinja_parse_tuple(parser, JINJA_WITHOUT_IF, NULL));
		struct jinja_node *body = jinja_node(parser, NODE_BODY);
		parse_block(parser, &body->body, ends);
		jinja_push_node(parser->arena, &node->items, body);
		if (jinja_skip_name(parser, "elif"))
			continue;
		if (jinja_skip_name(parser, "else"))
			parse_block(parser, &node->orelse, end);
		parser->token++;
		parser->unknown = unknown;
		return node;
	}
}

static struct jinja_node *parse_set(struct jinja_parser *parser)
{
	struct jinja_node *node = jinja_node(parser, NODE_SET);
	node->left = jinja_parse_target(parser, 1);
	if (jinja_skip_operator(parser, "=")) {
		node->right = jinja_parse_tuple(parser, JINJA_WITH_IF, NULL);
		return node;
	}
	node->kind = NODE_SET_BLOCK;
	const struct jinja_node *outer = enter_frame(parser);
	node->right = jinja_parse_filters(parser, NULL, 0);
	leave_frame(parser, outer);
	parse_whole(parser, &node->body, "endset");
	return node;
}

static void parse_parameters(struct jinja_parser *parser, struct jinja_macro_form *macro)
{
	int has_default = 0;
	const struct jinja_node *outer = enter_frame(parser);
	jinja_expect_operator(parser, "(");
	while (!jinja_at_operator(parser, ")")) {
		if (macro->parameters.count)
			jinja_expect_operator(parser, ",");
		struct jinja_node *parameter = jinja_node(parser, NODE_NAME);
		parameter->name = jinja_expect_name(parser);
		if (jinja_skip_operator(parser, "=")) {
			parameter->right = jinja_parse_expression(parser, JINJA_WITH_IF);
			has_default = 1;
		} else if (has_default) {
			jinja_raise_at(parser->arena, parameter->line, parameter->column, "non-default argument follows default argument");
		}
		jinja_push_node(parser->arena, &macro->parameters, parameter);
	}
	leave_frame(parser, outer);
	parser->token++;
}

/* A macro's body, or a caller's; loops around it cannot be left from inside. */
static void parse_macro_body(struct jinja_parser *parser, struct jinja_macro_form *macro, const char *end)
{
	struct jinja_macro_form *outer = parser->macro;
	int loops = parser->loops;
	parser->macro = macro;
	parser->loops = 0;
	parse_whole(parser, &macro->body, end);
	parser->macro = outer;
	parser->loops = loops;
	for (size_t i = 0; i < macro->parameters.count; i++) /* an explicit parameter is no special name */
		macro->reads_caller = macro->reads_caller && macro->parameters.node[i]->name != parser->jinja->caller;
}

static struct jinja_node *parse_macro(struct jinja_parser *parser)
{
	struct jinja_node *node = jinja_node(parser, NODE_MACRO);
	node->macro = jinja_take(parser->arena, 1, sizeof *node->macro);
	node->macro->name = jinja_expect_name(parser);
	parse_parameters(parser, node->macro);
	parse_macro_body(parser, node->macro, "endmacro");
	return node;
}

static struct jinja_node *parse_call_block(struct jinja_parser *parser)
{
	struct jinja_node *node = jinja_node(parser, NODE_CALL_BLOCK);
	node->macro = jinja_take(parser->arena, 1, sizeof *node->macro);
	if (jinja_at_operator(parser, "("))
		parse_parameters(parser, node->macro);
	node->left = jinja_parse_expression(parser, JINJA_WITH_IF);
	if (node->left->kind != NODE_CALL)
		jinja_raise_at(parser->arena, node->line, node->column, "expected call");
	parse_macro_body(parser, node->macro, "endcall");
	return node;
}

static struct jinja_node *parse_with(struct jinja_parser *parser)
{
	struct jinja_node *node = jinja_node(parser, NODE_WITH);
	while (parser->token->kind != TOKEN_CLOSE_BLOCK) {
		if (node->items.count)
			jinja_expect_operator(parser, ",");
		jinja_push_node(parser->arena, &node->items, jinja_parse_target(parser, 0));
		jinja_expect_operator(parser, "=");
		jinja_push_node(parser->arena, &node->items, jinja_parse_expression(parser, JINJA_WITH_IF));
	}
	parse_whole(parser, &node->body, "endwith");
	return node;
}

static struct jinja_node *parse_print(struct jinja_parser *parser)
{
	struct jinja_node *node = jinja_node(parser, NODE_BODY);
	do {
		struct jinja_node *output = jinja_node(parser, NODE_OUTPUT);
		output->left = jinja_parse_expression(parser, JINJA_WITH_IF);
		jinja_push_node(parser->arena, &node->body, output);
	} while (jinja_skip_operator(parser, ","));
	return node;
}

static noreturn void refuse_statement(struct jinja_parser *parser, const struct jinja_token *token)
{
	static const char *const absent[] = {"include", "import", "from", "extends", "block", "autoescape", "do", "trans"};
	for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
		if (holds(token, absent[i]))
			jinja_raise_at(parser->arena, token->line, token->column, "{%% %s %%} is not supported in a chat template",
			               absent[i]);
	jinja_raise_at(parser->arena, token->line, token->column, "Encountered unknown tag '%.*s'.",
	               (int)(token->text.length < 60 ? token->text.length : 60), token->text.bytes);
}

static struct jinja_node *parse_tag(struct jinja_parser *parser, const struct jinja_token *token)
{
	struct jinja_node *node;
	if (holds(token, "for"))
		return parse_for(parser);
	if (holds(token, "if"))
		return parse_if(parser);
	if (holds(token, "set"))
		return parse_set(parser);
	if (holds(token, "macro"))
		return parse_macro(parser);
	if (holds(token, "call"))
		return parse_call_block(parser);
	if (holds(token, "with"))
		return parse_with(parser);
	if (holds(token, "print"))
		return parse_print(parser);
	if (holds(token, "filter")) {
		node = jinja_node(parser, NODE_FILTER_BLOCK);
		const struct jinja_node *outer = enter_frame(parser);
		node->right = jinja_parse_filters(parser, NULL, 1);
		leave_frame(parser, outer);
		parse_whole(parser, &node->body, "endfilter");
		return node;
	}
	if (holds(token, "generation")) {
		int loops = parser->loops;
		node = jinja_node(parser, NODE_GENERATION);
		parser->jinja->has_generation = 1;
		parser->loops = 0; /* as in Jinja2, break cannot leave a loop around the block */
		parse_whole(parser, &node->body, "endgeneration");
		parser->loops = loops;
		return node;
	}
	if (holds(token, "break") || holds(token, "continue")) {
		if (!parser->loops)
			jinja_raise_at(parser->arena, token->line, token->column, "'%.*s' outside loop", (int)token->text.length,
			               token->text.bytes);
		return jinja_node(parser, holds(token, "break") ? NODE_BREAK : NODE_CONTINUE);
	}
	refuse_statement(parser, token);
}

static struct jinja_node *parse_statement(struct jinja_parser *parser)
{
	const struct jinja_token *outer = parser->tag;
	if (parser->token->kind != TOKEN_NAME)
		jinja_unexpected(parser, "a tag's name");
	parser->tag = parser->token++;
	struct jinja_node *node = parse_tag(parser, parser->tag);
	parser->tag = outer;
	return node;
}

/* Up to {% and one of `ends`, or to the end of the template where `ends` is NULL. */
static void parse_body(struct jinja_parser *parser, struct jinja_nodes *out, const char *const *ends)
{
	for (;;) {
		struct jinja_node *node;
		const struct jinja_token *token = parser->token;
		switch (token->kind) {
		case TOKEN_DATA:
			node = jinja_node(parser, NODE_DATA);
			node->value = (struct jinja_value){.kind = JINJA_STRING, .content.string = &token->text};
			jinja_push_node(parser->arena, &parser->jinja->literals, node);
			jinja_push_node(parser->arena, out, node);
			parser->token++;
			break;
		case TOKEN_OPEN_VARIABLE:
			parser->token++;
			node = jinja_node(parser, NODE_OUTPUT);
			node->left = jinja_parse_tuple(parser, JINJA_WITH_IF, NULL);
			if (parser->token->kind != TOKEN_CLOSE_VARIABLE)
				jinja_unexpected(parser, "end of print statement");
			parser->token++;
			jinja_push_node(parser->arena, out, node);
			break;
		case TOKEN_OPEN_BLOCK:
			parser->token++;
			for (const char *const *end = ends; end && *end; end++)
				if (jinja_at_name(parser, *end))
					return;
			jinja_push_node(parser->arena, out, parse_statement(parser));
			if (parser->token->kind != TOKEN_CLOSE_BLOCK)
				jinja_unexpected(parser, "end of statement block");
			parser->token++;
			break;
		default:
			if (token->kind == TOKEN_END && !ends)
				return;
			if (token->kind == TOKEN_END)
				jinja_raise_at(parser->arena, parser->tag->line, parser->tag->column, "{%% %.*s %%} is not closed",
				               (int)parser->tag->text.length, parser->tag->text.bytes);
			jinja_unexpected(parser, "a statement");
		}
	}
}

static int is_utf8(const char *text, size_t length)
{
	utf8proc_int32_t code;
	for (size_t at = 0; at < length;) {
		utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(length - at), &code);
		if (bytes <= 0)
			return 0;
		at += (size_t)bytes;
	}
	return 1;
}

int rh_jinja_open(const char *text, size_t length, const char *where, struct rh_jinja **out)
{
	struct rh_jinja *jinja = rh_alloc(1, sizeof *jinja);
	if (!jinja)
		return -ENOMEM;
	jmp_buf entry;
	jinja->arena = (struct jinja_arena){.limit = MEMORY_MOST, .entry = &entry};
	if (setjmp(entry)) {
		int rc = jinja->arena.rc;
		rh_jinja_close(jinja);
		return rc == -ENOMEM ? rc : rh_fail(rc, "%s: %s", where, rh_jinja_fault());
	}
	struct jinja_tokens tokens = {0};
	struct jinja_parser parser = {.jinja = jinja, .arena = &jinja->arena};
	jinja->loop = jinja_symbol(jinja, "loop", 4);
	jinja->caller = jinja_symbol(jinja, "caller", 6);
	jinja->kwargs = jinja_symbol(jinja, "kwargs", 6);
	jinja->varargs = jinja_symbol(jinja, "varargs", 7);
	if (!is_utf8(text, length))
		jinja_raise(&jinja->arena, "the template is not valid UTF-8");
	jinja_lex(&jinja->arena, text, length, &tokens);
	parser.token = tokens.token;
	parse_body(&parser, &jinja->body, NULL);
	refuse_unknown(&parser);
	jinja->arena.entry = NULL;
	*out = jinja;
	return 0;
}

void rh_jinja_close(struct rh_jinja *jinja)
{
	if (jinja)
		jinja_arena_free(&jinja->arena);
	rh_free(jinja);
}

int rh_jinja_has_generation(const struct rh_jinja *jinja)
{
	return jinja->has_generation;
}

int rh_jinja_reads(const struct rh_jinja *jinja, const char *name)
{
	for (const struct jinja_symbol *s = jinja->symbols; s; s = s->next)
		if (!strcmp(s->name, name))
			return 1;
	for (size_t i = 0; i < jinja->literals.count; i++)
		if (jinja_is_text(jinja->literals.node[i]->value, name))
			return 1;
	return 0;
}

int rh_jinja_writes(const struct rh_jinja *jinja, const char *text)
{
	for (size_t i = 0; i < jinja->literals.count; i++) {
		const struct jinja_string *literal = jinja->literals.node[i]->value.content.string;
		if (memmem(literal->bytes, literal->length, text, strlen(text)))
			return 1;
	}
	return 0;
}
