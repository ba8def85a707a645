/* Expressions evaluated. */
#include "jinja/jinja_internal.h"

#include <string.h>

void jinja_step(struct jinja *j, uint64_t steps)
{
	j->steps += steps;
	if (j->steps > j->bounds.steps)
		jinja_raise(&j->arena, "the template takes more than %llu steps", (unsigned long long)j->bounds.steps);
}

void jinja_enter(struct jinja *j)
{
	if (++j->depth > j->bounds.depth)
		jinja_raise(&j->arena, "more than %u calls, expressions or values inside one another", j->bounds.depth);
}

void jinja_leave(struct jinja *j)
{
	j->depth--;
}

static struct jinja_value look_up(struct jinja *j, const struct jinja_symbol *name)
{
	for (const struct jinja_scope *scope = j->scope; scope; scope = scope->outer)
		for (size_t i = scope->count; i-- > 0;)
			if (scope->variable[i].name == name)
				return scope->variable[i].value;
	struct jinja_value global = jinja_find_global(j, name->name);
	return global.kind == JINJA_MISSING ? jinja_undefined_name(j, name->name) : global;
}

static void add_keyword(struct jinja *j, struct jinja_dict *keywords, struct jinja_value key, struct jinja_value value)
{
	if (key.kind != JINJA_STRING)
		jinja_raise(&j->arena, "keywords must be strings");
	if (jinja_dict_find(j, keywords, key))
		jinja_raise(&j->arena, "got multiple values for keyword argument %s", jinja_repr(j, key));
	jinja_dict_set(j, keywords, key, value);
}

struct jinja_call jinja_evaluate_arguments(struct jinja *j, const struct jinja_arguments *arguments, struct jinja_value caller)
{
	struct jinja_list positional = {0};
	struct jinja_dict keywords = {0};
	for (size_t i = 0; arguments && i < arguments->positional.count; i++)
		jinja_push(j, &positional, jinja_evaluate(j, arguments->positional.node[i]));
	for (size_t i = 0; arguments && i < arguments->keyword.count; i++) {
		const struct jinja_node *keyword = arguments->keyword.node[i];
		add_keyword(j, &keywords, jinja_string(j, keyword->keyword->name, keyword->keyword->length),
		            jinja_evaluate(j, keyword->left));
	}
	if (caller.kind != JINJA_MISSING)
		add_keyword(j, &keywords, jinja_text(j, "caller"), caller);
	if (arguments && arguments->star) {
		const struct jinja_list *more = jinja_items(j, jinja_evaluate(j, arguments->star));
		for (size_t i = 0; i < more->count; i++)
			jinja_push(j, &positional, more->item[i]);
	}
	if (arguments && arguments->star_star) {
		struct jinja_value more = jinja_evaluate(j, arguments->star_star);
		if (more.kind != JINJA_DICT)
			jinja_raise(&j->arena, "argument after ** must be a mapping, not %s", jinja_type(more));
		for (size_t i = 0; i < more.content.dict->count; i++)
			add_keyword(j, &keywords, more.content.dict->pair[i].key, more.content.dict->pair[i].value);
	}
	return (struct jinja_call){positional.item, positional.count, keywords.pair, keywords.count};
}

static struct jinja_value evaluate_items(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value list = jinja_new_list(j, node->kind == NODE_LIST ? JINJA_LIST : JINJA_TUPLE);
	for (size_t i = 0; i < node->items.count; i++)
		jinja_push(j, list.content.list, jinja_evaluate(j, node->items.node[i]));
	return list;
}

static struct jinja_value evaluate_dict(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value dict = jinja_new_dict(j, JINJA_DICT);
	for (size_t i = 0; i + 1 < node->items.count; i += 2) {
		struct jinja_value key = jinja_evaluate(j, node->items.node[i]);
		jinja_dict_set(j, dict.content.dict, key, jinja_evaluate(j, node->items.node[i + 1]));
	}
	return dict;
}

static struct jinja_value evaluate_item(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value object = jinja_evaluate(j, node->left);
	if (node->right->kind != NODE_SLICE)
		return jinja_item(j, object, jinja_evaluate(j, node->right));
	const struct jinja_node *parts[3] = {node->right->left, node->right->right, node->right->third};
	struct jinja_value bounds[3];
	for (int i = 0; i < 3; i++)
		bounds[i] = parts[i] ? jinja_evaluate(j, parts[i]) : jinja_none();
	return jinja_slice(j, object, bounds);
}

static int compare(struct jinja *j, enum jinja_op op, struct jinja_value left, struct jinja_value right)
{
	switch (op) {
	case OP_EQ:
		return jinja_equal(j, left, right);
	case OP_NE:
		return !jinja_equal(j, left, right);
	case OP_IN:
		return jinja_contains(j, right, left);
	case OP_NOT_IN:
		return !jinja_contains(j, right, left);
	default:
		return jinja_ordered(j, op, left, right);
	}
}

static struct jinja_value evaluate_compare(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value left = jinja_evaluate(j, node->left);
	for (size_t i = 0; i < node->items.count; i++) {
		struct jinja_value right = jinja_evaluate(j, node->items.node[i]->left);
		if (!compare(j, node->items.node[i]->op, left, right))
			return jinja_bool(0);
		left = right;
	}
	return jinja_bool(1);
}

static struct jinja_value evaluate_concat(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_buffer text = {0};
	for (size_t i = 0; i < node->items.count; i++)
		jinja_put_str(j, &text, jinja_evaluate(j, node->items.node[i]));
	return jinja_copy(j, &text);
}

struct jinja_value jinja_apply_filter(struct jinja *j, const struct jinja_node *node, struct jinja_value value)
{
	struct jinja_call call = jinja_evaluate_arguments(j, node->arguments, (struct jinja_value){.kind = JINJA_MISSING});
	if (!node->filter)
		jinja_raise(&j->arena, "No filter named '%.60s' found.", node->name->name);
	return node->filter->call(j, value, &call);
}

static struct jinja_value evaluate_call(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value callee = jinja_evaluate(j, node->left);
	struct jinja_call call = jinja_evaluate_arguments(j, node->arguments, (struct jinja_value){.kind = JINJA_MISSING});
	return jinja_call_value(j, callee, &call);
}

static struct jinja_value evaluate_test(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value value = jinja_evaluate(j, node->left);
	struct jinja_call call = jinja_evaluate_arguments(j, node->arguments, (struct jinja_value){.kind = JINJA_MISSING});
	if (!node->test)
		jinja_raise(&j->arena, "No test named '%.60s' found.", node->name->name);
	return jinja_bool(node->test->call(j, value, &call));
}

static struct jinja_value evaluate_if(struct jinja *j, const struct jinja_node *node)
{
	if (jinja_truth(j, jinja_evaluate(j, node->right)))
		return jinja_evaluate(j, node->left);
	if (node->third)
		return jinja_evaluate(j, node->third);
	return jinja_undefined_hint(j, "the inline if-expression on line %d evaluated to false and no else section was defined.",
	                            node->line);
}

static struct jinja_value dispatch(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value value;
	switch (node->kind) {
	case NODE_CONST:
		return node->value;
	case NODE_NAME:
		return look_up(j, node->name);
	case NODE_TUPLE:
	case NODE_LIST:
		return evaluate_items(j, node);
	case NODE_DICT:
		return evaluate_dict(j, node);
	case NODE_ATTRIBUTE:
		value = jinja_evaluate(j, node->left);
		return jinja_attribute(j, value, jinja_string(j, node->name->name, node->name->length));
	case NODE_ITEM:
		return evaluate_item(j, node);
	case NODE_CALL:
		return evaluate_call(j, node);
	case NODE_FILTER:
		return jinja_apply_filter(j, node, jinja_evaluate(j, node->left));
	case NODE_TEST:
		return evaluate_test(j, node);
	case NODE_NOT:
		return jinja_bool(!jinja_truth(j, jinja_evaluate(j, node->left)));
	case NODE_NEGATIVE:
	case NODE_POSITIVE:
		return jinja_negate(j, jinja_evaluate(j, node->left), node->kind == NODE_NEGATIVE ? -1 : 1);
	case NODE_AND:
		value = jinja_evaluate(j, node->left);
		return jinja_truth(j, value) ? jinja_evaluate(j, node->right) : value;
	case NODE_OR:
		value = jinja_evaluate(j, node->left);
		return jinja_truth(j, value) ? value : jinja_evaluate(j, node->right);
	case NODE_IF_ELSE:
		return evaluate_if(j, node);
	case NODE_CONCAT:
		return evaluate_concat(j, node);
	case NODE_BINARY:
		value = jinja_evaluate(j, node->left);
		return jinja_binary(j, node->op, value, jinja_evaluate(j, node->right));
	case NODE_COMPARE:
		return evaluate_compare(j, node);
	default:
		RH_ASSERT(!"an expression");
		return jinja_none();
	}
}

struct jinja_value jinja_evaluate(struct jinja *j, const struct jinja_node *node)
{
	jinja_step(j, 1);
	jinja_enter(j);
	struct jinja_value value = dispatch(j, node);
	jinja_leave(j);
	return value;
}
