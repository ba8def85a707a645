/* Expressions, by falling binding strength: if-else, or, and, not, comparisons, + -, ~, * / // %, **, signs, then what follows a value:
 * attributes, subscripts, calls, filters and tests. */
#include "jinja/jinja_internal.h"

#include <string.h>

enum { DEPTH_MOST = 150, CHAIN_MOST = 1000 };

static struct jinja_node *parse_or(struct jinja_parser *parser);
static struct jinja_node *parse_unary(struct jinja_parser *parser, int with_filters);
static struct jinja_node *parse_primary(struct jinja_parser *parser, int with_namespace);
static struct jinja_node *parse_postfix(struct jinja_parser *parser, struct jinja_node *node);

static struct jinja_node *expression(struct jinja_parser *parser)
{
	return jinja_parse_expression(parser, JINJA_WITH_IF);
}

/* A chain of left-bound operators is a tree as deep as it is long. */
static void count_link(struct jinja_parser *parser, int *links)
{
	if (++*links > CHAIN_MOST)
		jinja_raise_at(parser->arena, parser->token->line, parser->token->column, "an expression of more than %d parts in a row",
		               CHAIN_MOST);
}

static struct jinja_node *pair(struct jinja_parser *parser, enum jinja_node_kind kind, struct jinja_node *left, struct jinja_node *right)
{
	struct jinja_node *node = jinja_node(parser, kind);
	node->left = left;
	node->right = right;
	if (left) {
		node->line = left->line;
		node->column = left->column;
	}
	return node;
}

struct jinja_node *jinja_parse_expression(struct jinja_parser *parser, enum jinja_conditional conditional)
{
	if (++parser->depth > DEPTH_MOST)
		jinja_raise_at(parser->arena, parser->token->line, parser->token->column, "more than %d expressions inside one another",
		               DEPTH_MOST);
	const struct jinja_node *unknown = parser->unknown;
	struct jinja_node *node = parse_or(parser);
	int links = 0;
	while (conditional == JINJA_WITH_IF && jinja_skip_name(parser, "if")) {
		count_link(parser, &links);
		node = pair(parser, NODE_IF_ELSE, node, parse_or(parser));
		if (jinja_skip_name(parser, "else"))
			node->third = jinja_parse_expression(parser, JINJA_WITH_IF);
	}
	if (links) /* the condition may leave it out */
		parser->unknown = unknown;
	parser->depth--;
	return node;
}

static struct jinja_node *parse_math1(struct jinja_parser *parser);

static struct jinja_node *parse_compare(struct jinja_parser *parser)
{
	static const struct {
		const char *text;
		enum jinja_op op;
	} ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE}, {">=", OP_GE}, {"<", OP_LT}, {">", OP_GT}};
	struct jinja_node *first = parse_math1(parser), *node = NULL;
	for (;;) {
		int op = -1;
		for (size_t i = 0; op < 0 && i < sizeof ops / sizeof *ops; i++)
			if (jinja_skip_operator(parser, ops[i].text))
				op = (int)ops[i].op;
		if (op < 0 && jinja_skip_name(parser, "in"))
			op = OP_IN;
		if (op < 0 && jinja_at_name(parser, "not") && parser->token[1].kind == TOKEN_NAME && parser->token[1].text.length == 2 &&
		    !memcmp(parser->token[1].text.bytes, "in", 2)) {
			parser->token += 2;
			op = OP_NOT_IN;
		}
		if (op < 0)
			return node ? node : first;
		if (!node)
			node = pair(parser, NODE_COMPARE, first, NULL);
		struct jinja_node *operand = jinja_node(parser, NODE_OPERAND);
		operand->op = (enum jinja_op)op;
		operand->left = parse_math1(parser);
		jinja_push_node(parser->arena, &node->items, operand);
	}
}

static struct jinja_node *parse_not(struct jinja_parser *parser)
{
	int negations = 0;
	struct jinja_node *outer = NULL, *inner = NULL;
	while (jinja_at_name(parser, "not")) {
		count_link(parser, &negations);
		struct jinja_node *node = jinja_node(parser, NODE_NOT);
		parser->token++;
		if (inner)
			inner->left = node;
		else
			outer = node;
		inner = node;
	}
	struct jinja_node *node = parse_compare(parser);
	if (!inner)
		return node;
	inner->left = node;
	return outer;
}

static struct jinja_node *parse_and(struct jinja_parser *parser)
{
	struct jinja_node *node = parse_not(parser);
	for (int links = 0; jinja_skip_name(parser, "and"); count_link(parser, &links))
		node = pair(parser, NODE_AND, node, parse_not(parser));
	return node;
}

static struct jinja_node *parse_or(struct jinja_parser *parser)
{
	struct jinja_node *node = parse_and(parser);
	for (int links = 0; jinja_skip_name(parser, "or"); count_link(parser, &links))
		node = pair(parser, NODE_OR, node, parse_and(parser));
	return node;
}

static struct jinja_node *binary(struct jinja_parser *parser, enum jinja_op op, struct jinja_node *left, struct jinja_node *right)
{
	struct jinja_node *node = pair(parser, NODE_BINARY, left, right);
	node->op = op;
	return node;
}

static struct jinja_node *parse_pow(struct jinja_parser *parser)
{
	struct jinja_node *node = parse_unary(parser, 1);
	for (int links = 0; jinja_skip_operator(parser, "**"); count_link(parser, &links))
		node = binary(parser, OP_POW, node, parse_unary(parser, 1));
	return node;
}

static struct jinja_node *parse_math2(struct jinja_parser *parser)
{
	struct jinja_node *node = parse_pow(parser);
	for (int links = 0;; count_link(parser, &links)) {
		if (jinja_skip_operator(parser, "*"))
			node = binary(parser, OP_MUL, node, parse_pow(parser));
		else if (jinja_skip_operator(parser, "/"))
			node = binary(parser, OP_DIV, node, parse_pow(parser));
		else if (jinja_skip_operator(parser, "//"))
			node = binary(parser, OP_FLOOR, node, parse_pow(parser));
		else if (jinja_skip_operator(parser, "%"))
			node = binary(parser, OP_MOD, node, parse_pow(parser));
		else
			return node;
	}
}

static struct jinja_node *parse_concat(struct jinja_parser *parser)
{
	struct jinja_node *first = parse_math2(parser), *node = NULL;
	while (jinja_skip_operator(parser, "~")) {
		if (!node) {
			node = pair(parser, NODE_CONCAT, first, NULL);
			node->left = NULL;
			jinja_push_node(parser->arena, &node->items, first);
		}
		jinja_push_node(parser->arena, &node->items, parse_math2(parser));
	}
	return node ? node : first;
}

static struct jinja_node *parse_math1(struct jinja_parser *parser)
{
	struct jinja_node *node = parse_concat(parser);
	for (int links = 0;; count_link(parser, &links)) {
		if (jinja_skip_operator(parser, "+"))
			node = binary(parser, OP_ADD, node, parse_concat(parser));
		else if (jinja_skip_operator(parser, "-"))
			node = binary(parser, OP_SUB, node, parse_concat(parser));
		else
			return node;
	}
}

static void parse_arguments(struct jinja_parser *parser, struct jinja_node *node)
{
	struct jinja_arguments *arguments = node->arguments = jinja_take(parser->arena, 1, sizeof *arguments);
	const struct jinja_token *open = parser->token;
	jinja_expect_operator(parser, "(");
	while (!jinja_at_operator(parser, ")")) {
		int is_good = !arguments->star_star;
		if (jinja_skip_operator(parser, "*")) {
			is_good = is_good && !arguments->star;
			arguments->star = expression(parser);
		} else if (jinja_skip_operator(parser, "**")) {
			arguments->star_star = expression(parser);
		} else if (parser->token->kind == TOKEN_NAME && parser->token[1].kind == TOKEN_OPERATOR &&
		           parser->token[1].text.length == 1 && *parser->token[1].text.bytes == '=') {
			const struct jinja_symbol *name = jinja_expect_name(parser);
			parser->token++;
			struct jinja_node *value = expression(parser), *keyword = pair(parser, NODE_OPERAND, value, NULL);
			keyword->keyword = name;
			jinja_push_node(parser->arena, &arguments->keyword, keyword);
		} else {
			is_good = is_good && !arguments->star && !arguments->keyword.count;
			jinja_push_node(parser->arena, &arguments->positional, expression(parser));
		}
		if (!is_good)
			jinja_raise_at(parser->arena, open->line, open->column, "invalid syntax for function call expression");
		if (!jinja_at_operator(parser, ")"))
			jinja_expect_operator(parser, ",");
	}
	parser->token++;
}

static struct jinja_node *parse_call(struct jinja_parser *parser, struct jinja_node *callee)
{
	struct jinja_node *node = jinja_node(parser, NODE_CALL);
	node->left = callee;
	parse_arguments(parser, node);
	return node;
}

static struct jinja_node *parse_subscribed(struct jinja_parser *parser)
{
	struct jinja_node *slice = jinja_node(parser, NODE_SLICE), *first = NULL;
	if (!jinja_at_operator(parser, ":"))
		first = expression(parser);
	if (!jinja_skip_operator(parser, ":"))
		return first;
	slice->left = first;
	if (!jinja_at_operator(parser, ":") && !jinja_at_operator(parser, "]") && !jinja_at_operator(parser, ","))
		slice->right = expression(parser);
	if (jinja_skip_operator(parser, ":") && !jinja_at_operator(parser, "]") && !jinja_at_operator(parser, ","))
		slice->third = expression(parser);
	return slice;
}

static struct jinja_node *parse_subscript(struct jinja_parser *parser, struct jinja_node *object)
{
	struct jinja_node *node = jinja_node(parser, NODE_ITEM);
	node->left = object;
	if (jinja_skip_operator(parser, ".")) {
		if (parser->token->kind == TOKEN_INTEGER) {
			node->right = jinja_node(parser, NODE_CONST);
			node->right->value = jinja_int(parser->token++->integer);
			return node;
		}
		node->kind = NODE_ATTRIBUTE;
		node->name = jinja_expect_name(parser);
		return node;
	}
	jinja_expect_operator(parser, "[");
	struct jinja_nodes parts = {0};
	while (!jinja_at_operator(parser, "]")) {
		if (parts.count)
			jinja_expect_operator(parser, ",");
		jinja_push_node(parser->arena, &parts, parse_subscribed(parser));
	}
	parser->token++;
	node->right = parts.count == 1 ? parts.node[0] : jinja_node(parser, NODE_TUPLE);
	if (parts.count != 1)
		node->right->items = parts;
	for (size_t i = 0; parts.count != 1 && i < parts.count; i++)
		if (parts.node[i]->kind == NODE_SLICE)
			jinja_raise_at(parser->arena, node->line, node->column, "a subscript of several slices is not supported");
	return node;
}

static struct jinja_node *parse_postfix(struct jinja_parser *parser, struct jinja_node *node)
{
	for (int links = 0;; count_link(parser, &links)) {
		if (jinja_at_operator(parser, ".") || jinja_at_operator(parser, "["))
			node = parse_subscript(parser, node);
		else if (jinja_at_operator(parser, "("))
			node = parse_call(parser, node);
		else
			return node;
	}
}

static void note_unknown(struct jinja_parser *parser, const struct jinja_node *node)
{
	if (!parser->unknown)
		parser->unknown = node;
}

static struct jinja_node *parse_filter(struct jinja_parser *parser, struct jinja_node *value)
{
	struct jinja_node *node = jinja_node(parser, NODE_FILTER);
	const struct jinja_symbol *name = jinja_expect_name(parser);
	node->left = value;
	node->name = name;
	node->filter = jinja_find_filter(name->name, name->length);
	if (!node->filter)
		note_unknown(parser, node);
	if (jinja_at_operator(parser, "("))
		parse_arguments(parser, node);
	return node;
}

struct jinja_node *jinja_parse_filters(struct jinja_parser *parser, struct jinja_node *node, int is_inline)
{
	if (is_inline)
		node = parse_filter(parser, node);
	for (int links = 0; jinja_skip_operator(parser, "|"); count_link(parser, &links))
		node = parse_filter(parser, node);
	return node;
}

static struct jinja_node *parse_test(struct jinja_parser *parser, struct jinja_node *value)
{
	int is_negated = jinja_skip_name(parser, "not");
	struct jinja_node *node = jinja_node(parser, NODE_TEST);
	const struct jinja_symbol *name = jinja_expect_name(parser);
	node->left = value;
	node->name = name;
	node->test = jinja_find_test(name->name, name->length);
	if (!node->test)
		note_unknown(parser, node);
	const struct jinja_token *token = parser->token;
	if (jinja_at_operator(parser, "(")) {
		parse_arguments(parser, node);
	} else if ((token->kind == TOKEN_NAME || token->kind == TOKEN_STRING || token->kind == TOKEN_INTEGER ||
	            token->kind == TOKEN_FLOAT || jinja_at_operator(parser, "[") || jinja_at_operator(parser, "{")) &&
	           !jinja_at_name(parser, "else") && !jinja_at_name(parser, "or") && !jinja_at_name(parser, "and")) {
		if (jinja_at_name(parser, "is"))
			jinja_raise_at(parser->arena, token->line, token->column, "You cannot chain multiple tests with is");
		node->arguments = jinja_take(parser->arena, 1, sizeof *node->arguments);
		jinja_push_node(parser->arena, &node->arguments->positional, parse_postfix(parser, parse_primary(parser, 0)));
	}
	return is_negated ? pair(parser, NODE_NOT, node, NULL) : node;
}

static struct jinja_node *parse_unary(struct jinja_parser *parser, int with_filters)
{
	struct jinja_node *node;
	if (jinja_at_operator(parser, "-") || jinja_at_operator(parser, "+")) {
		node = jinja_node(parser, jinja_at_operator(parser, "-") ? NODE_NEGATIVE : NODE_POSITIVE);
		parser->token++;
		if (++parser->depth > DEPTH_MOST)
			jinja_raise_at(parser->arena, node->line, node->column, "more than %d expressions inside one another", DEPTH_MOST);
		node->left = parse_unary(parser, 0);
		parser->depth--;
	} else {
		node = parse_primary(parser, 0);
	}
	node = parse_postfix(parser, node);
	for (int links = 0; with_filters; count_link(parser, &links)) {
		if (jinja_skip_operator(parser, "|"))
			node = parse_filter(parser, node);
		else if (jinja_skip_name(parser, "is"))
			node = parse_test(parser, node);
		else if (jinja_at_operator(parser, "("))
			node = parse_call(parser, node);
		else
			break;
	}
	return node;
}

static struct jinja_node *parse_name(struct jinja_parser *parser, int with_namespace)
{
	static const struct {
		const char *name;
		int value; /* 2: none */
	} words[] = {{"true", 1}, {"True", 1}, {"false", 0}, {"False", 0}, {"none", 2}, {"None", 2}};
	struct jinja_node *node = jinja_node(parser, NODE_NAME);
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (jinja_skip_name(parser, words[i].name)) {
			node->kind = NODE_CONST;
			node->value = words[i].value == 2 ? jinja_none() : jinja_bool(words[i].value);
			return node;
		}
	node->name = jinja_expect_name(parser);
	if (with_namespace && jinja_skip_operator(parser, ".")) {
		node->kind = NODE_NAMESPACE_TARGET;
		node->second_name = jinja_expect_name(parser);
	}
	if (parser->macro) {
		parser->macro->reads_caller |= node->name == parser->jinja->caller;
		parser->macro->reads_kwargs |= node->name == parser->jinja->kwargs;
		parser->macro->reads_varargs |= node->name == parser->jinja->varargs;
	}
	return node;
}

static struct jinja_node *parse_strings(struct jinja_parser *parser)
{
	struct jinja_node *node = jinja_node(parser, NODE_CONST);
	size_t length = 0, used = 0, count = 0;
	for (; parser->token[count].kind == TOKEN_STRING; count++)
		length += parser->token[count].text.length;
	char *bytes = jinja_take(parser->arena, length + 1, 1);
	for (; count; count--, parser->token++) {
		memcpy(bytes + used, parser->token->text.bytes, parser->token->text.length);
		used += parser->token->text.length;
	}
	struct jinja_string *string = jinja_take(parser->arena, 1, sizeof *string);
	*string = (struct jinja_string){bytes, length};
	node->value = (struct jinja_value){.kind = JINJA_STRING, .content.string = string};
	jinja_push_node(parser->arena, &parser->jinja->literals, node);
	return node;
}

/* [a, b] and {a: b}, a comma at the end allowed. */
static struct jinja_node *parse_display(struct jinja_parser *parser, enum jinja_node_kind kind, const char *end)
{
	struct jinja_node *node = jinja_node(parser, kind);
	parser->token++;
	while (!jinja_at_operator(parser, end)) {
		if (node->items.count)
			jinja_expect_operator(parser, ",");
		if (jinja_at_operator(parser, end))
			break;
		jinja_push_node(parser->arena, &node->items, expression(parser));
		if (kind != NODE_DICT)
			continue;
		jinja_expect_operator(parser, ":");
		jinja_push_node(parser->arena, &node->items, expression(parser));
	}
	parser->token++;
	return node;
}

static struct jinja_node *parse_primary(struct jinja_parser *parser, int with_namespace)
{
	const struct jinja_token *token = parser->token;
	struct jinja_node *node;
	if (token->kind == TOKEN_NAME)
		return parse_name(parser, with_namespace);
	if (token->kind == TOKEN_STRING)
		return parse_strings(parser);
	if (token->kind == TOKEN_INTEGER || token->kind == TOKEN_FLOAT) {
		node = jinja_node(parser, NODE_CONST);
		node->value = token->kind == TOKEN_INTEGER ? jinja_int(token->integer) : jinja_float(token->real);
		parser->token++;
		return node;
	}
	if (jinja_skip_operator(parser, "(")) {
		if (jinja_at_operator(parser, ")"))
			node = jinja_node(parser, NODE_TUPLE);
		else
			node = jinja_parse_tuple(parser, JINJA_WITH_IF, NULL);
		jinja_expect_operator(parser, ")");
		return node;
	}
	if (jinja_at_operator(parser, "["))
		return parse_display(parser, NODE_LIST, "]");
	if (jinja_at_operator(parser, "{"))
		return parse_display(parser, NODE_DICT, "}");
	jinja_unexpected(parser, "an expression");
}

static int ends_tuple(const struct jinja_parser *parser, const char *end)
{
	return parser->token->kind == TOKEN_CLOSE_VARIABLE || parser->token->kind == TOKEN_CLOSE_BLOCK || jinja_at_operator(parser, ")") ||
	       (end && jinja_at_name(parser, end));
}

struct jinja_node *jinja_parse_tuple(struct jinja_parser *parser, enum jinja_conditional conditional, const char *end)
{
	if (ends_tuple(parser, end))
		jinja_unexpected(parser, "an expression");
	struct jinja_node *first = jinja_parse_expression(parser, conditional);
	if (!jinja_at_operator(parser, ","))
		return first;
	struct jinja_node *node = pair(parser, NODE_TUPLE, first, NULL);
	node->left = NULL;
	jinja_push_node(parser->arena, &node->items, first);
	while (jinja_skip_operator(parser, ",") && !ends_tuple(parser, end))
		jinja_push_node(parser->arena, &node->items, jinja_parse_expression(parser, conditional));
	return node;
}

struct jinja_node *jinja_parse_target(struct jinja_parser *parser, int with_namespace)
{
	struct jinja_node *tuple = jinja_node(parser, NODE_TUPLE);
	int is_tuple = 0;
	do {
		if (tuple->items.count && ends_tuple(parser, "in"))
			break;
		struct jinja_node *target = parse_primary(parser, with_namespace);
		int is_good = target->kind == NODE_NAME || target->kind == NODE_NAMESPACE_TARGET;
		for (size_t i = 0; target->kind == NODE_TUPLE && i < target->items.count; i++)
			is_good = (i == 0 || is_good) && target->items.node[i]->kind == NODE_NAME;
		if (!is_good)
			jinja_raise_at(parser->arena, target->line, target->column, "can't assign to this expression");
		jinja_push_node(parser->arena, &tuple->items, target);
		is_tuple |= jinja_at_operator(parser, ",");
	} while (jinja_skip_operator(parser, ","));
	return is_tuple ? tuple : tuple->items.node[0];
}
