/* Statements executed, and the rendering as a whole. */
#include "jinja/jinja_internal.h"

#include "core/alloc.h"

#include <string.h>

const struct rh_jinja_bounds rh_jinja_default_bounds = {.steps = 50000000, .memory = (size_t)1 << 30, .output = 256 << 20, .depth = 1500};

/* How a body ended. */
enum flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

static enum flow execute(struct jinja *j, const struct jinja_nodes *body);

struct jinja_scope *jinja_scope_open(struct jinja *j, struct jinja_scope *outer)
{
	struct jinja_scope *scope = jinja_take(&j->arena, 1, sizeof *scope);
	scope->outer = outer;
	return scope;
}

void jinja_assign(struct jinja *j, struct jinja_scope *scope, const struct jinja_symbol *name, struct jinja_value value)
{
	for (size_t i = 0; i < scope->count; i++)
		if (scope->variable[i].name == name) {
			scope->variable[i].value = value;
			return;
		}
	if (scope->count == scope->capacity) {
		size_t capacity = scope->capacity ? 2 * scope->capacity : 4;
		struct jinja_variable *wider = jinja_take(&j->arena, capacity, sizeof *wider);
		if (scope->count)
			memcpy(wider, scope->variable, scope->count * sizeof *wider);
		scope->variable = wider;
		scope->capacity = capacity;
	}
	scope->variable[scope->count++] = (struct jinja_variable){name, value};
}

static void assign_namespace(struct jinja *j, const struct jinja_node *target, struct jinja_value value)
{
	struct jinja_node name = {.kind = NODE_NAME, .name = target->name, .line = target->line};
	struct jinja_value object = jinja_evaluate(j, &name);
	if (object.kind != JINJA_NAMESPACE)
		jinja_raise(&j->arena, "cannot assign attribute on non-namespace object");
	struct jinja_value key = jinja_string(j, target->second_name->name, target->second_name->length);
	if (*target->second_name->name == '_')
		jinja_raise(&j->arena,
		            "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s. Please rename the "
		            "attribute.",
		            jinja_repr(j, key));
	jinja_dict_set(j, object.content.dict, key, value);
}

static void assign_target(struct jinja *j, struct jinja_scope *scope, const struct jinja_node *target, struct jinja_value value)
{
	if (target->kind == NODE_NAME) {
		jinja_assign(j, scope, target->name, value);
		return;
	}
	if (target->kind == NODE_NAMESPACE_TARGET) {
		assign_namespace(j, target, value);
		return;
	}
	if (value.kind != JINJA_STRING && value.kind != JINJA_GENERATOR && value.kind != JINJA_UNDEFINED && jinja_length(value) < 0)
		jinja_raise(&j->arena, "cannot unpack non-iterable %s object", jinja_type(value));
	const struct jinja_list *items = jinja_items(j, value);
	if (items->count < target->items.count)
		jinja_raise(&j->arena, "not enough values to unpack (expected %zu, got %zu)", target->items.count, items->count);
	if (items->count > target->items.count)
		jinja_raise(&j->arena, "too many values to unpack (expected %zu)", target->items.count);
	for (size_t i = 0; i < items->count; i++)
		assign_target(j, scope, target->items.node[i], items->item[i]);
}

/* The items for which the loop's condition holds; it is evaluated in a scope of its own. */
static struct jinja_list *filtered(struct jinja *j, const struct jinja_node *node, struct jinja_list *items)
{
	struct jinja_list *kept = jinja_take(&j->arena, 1, sizeof *kept);
	struct jinja_scope *outer = j->scope;
	for (size_t i = 0; i < items->count; i++) {
		j->scope = jinja_scope_open(j, outer);
		assign_target(j, j->scope, node->left, items->item[i]);
		if (jinja_truth(j, jinja_evaluate(j, node->third)))
			jinja_push(j, kept, items->item[i]);
	}
	j->scope = outer;
	return kept;
}

static void run_loop(struct jinja *j, const struct jinja_node *node, struct jinja_value iterable, int64_t depth0)
{
	struct jinja_scope *outer = j->scope;
	struct jinja_loop *loop = jinja_take(&j->arena, 1, sizeof *loop);
	struct jinja_list *items = jinja_items(j, iterable);
	if (node->third)
		items = filtered(j, node, items);
	*loop = (struct jinja_loop){.iterable = iterable, .list = items, .depth0 = depth0, .node = node, .scope = outer};
	struct jinja_value loop_value = {.kind = JINJA_LOOP, .content.loop = loop};
	for (size_t i = 0; i < items->count; i++) {
		loop->index0 = i;
		j->scope = jinja_scope_open(j, outer);
		jinja_assign(j, j->scope, j->form->loop, loop_value);
		assign_target(j, j->scope, node->left, items->item[i]);
		jinja_step(j, 1);
		if (execute(j, &node->body) == FLOW_BREAK)
			break;
	}
	j->scope = outer;
	if (!items->count) {
		j->scope = jinja_scope_open(j, outer);
		jinja_execute(j, &node->orelse);
		j->scope = outer;
	}
}

static struct jinja_value end_capture(struct jinja *j, struct jinja_buffer *buffer, struct jinja_buffer *outer)
{
	j->out = outer;
	return jinja_copy(j, buffer);
}

struct jinja_value jinja_loop_call(struct jinja *j, const struct jinja_loop *loop, struct jinja_value iterable)
{
	struct jinja_buffer *outer = j->out, buffer = {0};
	struct jinja_scope *scope = j->scope;
	j->out = &buffer;
	j->scope = loop->scope;
	run_loop(j, loop->node, iterable, loop->depth0 + 1);
	j->scope = scope;
	return end_capture(j, &buffer, outer);
}

struct jinja_value jinja_capture(struct jinja *j, const struct jinja_nodes *body, struct jinja_scope *scope)
{
	struct jinja_buffer *outer = j->out, buffer = {0};
	struct jinja_scope *outer_scope = j->scope;
	j->out = &buffer;
	j->scope = scope;
	jinja_execute(j, body);
	j->scope = outer_scope;
	return end_capture(j, &buffer, outer);
}

static struct jinja_value filter_text(struct jinja *j, const struct jinja_node *filter, struct jinja_value text)
{
	if (!filter)
		return text;
	return jinja_apply_filter(j, filter, filter_text(j, filter->left, text));
}

static struct jinja_value macro_value(struct jinja *j, const struct jinja_macro_form *form)
{
	struct jinja_macro *macro = jinja_take(&j->arena, 1, sizeof *macro);
	*macro = (struct jinja_macro){form, j->scope};
	return (struct jinja_value){.kind = JINJA_MACRO, .content.macro = macro};
}

static void execute_generation(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_scope *outer = j->scope;
	size_t first = j->out->length;
	j->scope = jinja_scope_open(j, outer);
	jinja_execute(j, &node->body);
	j->scope = outer;
	if (j->out != j->page) {
		j->is_hidden = 1;
		return;
	}
	jinja_push(j, j->spans, jinja_int((int64_t)first));
	jinja_push(j, j->spans, jinja_int((int64_t)j->out->length));
}

static void execute_with(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_scope *outer = j->scope, *scope = jinja_scope_open(j, outer);
	for (size_t i = 0; i + 1 < node->items.count; i += 2) /* values are those of the scope around it */
		assign_target(j, scope, node->items.node[i], jinja_evaluate(j, node->items.node[i + 1]));
	j->scope = scope;
	jinja_execute(j, &node->body);
	j->scope = outer;
}

static enum flow execute_if(struct jinja *j, const struct jinja_node *node)
{
	for (size_t i = 0; i + 1 < node->items.count; i += 2)
		if (jinja_truth(j, jinja_evaluate(j, node->items.node[i])))
			return execute(j, &node->items.node[i + 1]->body);
	return execute(j, &node->orelse);
}

static enum flow execute_one(struct jinja *j, const struct jinja_node *node)
{
	struct jinja_value value;
	j->line = node->line;
	switch (node->kind) {
	case NODE_DATA:
		jinja_put_string(j, j->out, *node->value.content.string);
		break;
	case NODE_OUTPUT:
		jinja_put_str(j, j->out, jinja_evaluate(j, node->left));
		break;
	case NODE_BODY:
		return execute(j, &node->body);
	case NODE_FOR:
		run_loop(j, node, jinja_evaluate(j, node->right), 0);
		break;
	case NODE_IF:
		return execute_if(j, node);
	case NODE_SET:
		assign_target(j, j->scope, node->left, jinja_evaluate(j, node->right));
		break;
	case NODE_SET_BLOCK:
		value = jinja_capture(j, &node->body, jinja_scope_open(j, j->scope));
		assign_target(j, j->scope, node->left, filter_text(j, node->right, value));
		break;
	case NODE_FILTER_BLOCK:
		value = jinja_capture(j, &node->body, jinja_scope_open(j, j->scope));
		jinja_put_str(j, j->out, filter_text(j, node->right, value));
		break;
	case NODE_MACRO:
		jinja_assign(j, j->scope, node->macro->name, macro_value(j, node->macro));
		break;
	case NODE_CALL_BLOCK:
		value = jinja_evaluate(j, node->left->left);
		struct jinja_call call = jinja_evaluate_arguments(j, node->left->arguments, macro_value(j, node->macro));
		jinja_put_str(j, j->out, jinja_call_value(j, value, &call));
		break;
	case NODE_WITH:
		execute_with(j, node);
		break;
	case NODE_GENERATION:
		execute_generation(j, node);
		break;
	case NODE_BREAK:
		return FLOW_BREAK;
	case NODE_CONTINUE:
		return FLOW_CONTINUE;
	default:
		RH_ASSERT(!"a statement");
	}
	return FLOW_ON;
}

static enum flow execute(struct jinja *j, const struct jinja_nodes *body)
{
	enum flow flow = FLOW_ON;
	jinja_enter(j);
	for (size_t i = 0; flow == FLOW_ON && i < body->count; i++) {
		jinja_step(j, 1);
		flow = execute_one(j, body->node[i]);
	}
	jinja_leave(j);
	return flow;
}

void jinja_execute(struct jinja *j, const struct jinja_nodes *body)
{
	if (execute(j, body) != FLOW_ON)
		RH_ASSERT(!"break and continue stay inside their loop");
}

/* Converts the variables that the template reads, once, before rendering. */
static void bind_variables(struct jinja *j, const json_t *variables)
{
	for (const struct jinja_symbol *s = j->form->symbols; s; s = s->next) {
		const json_t *value = json_object_get(variables, s->name);
		if (value)
			jinja_assign(j, j->root, s, jinja_from_json(j, value));
	}
	j->root = jinja_scope_open(j, j->root);
	j->scope = j->root;
}

static int keep_spans(const struct jinja *j, size_t start, struct rh_jinja_spans *spans)
{
	size_t count = j->spans->count / 2;
	spans->is_hidden |= j->is_hidden;
	int rc = rh_grow(&spans->span, &spans->capacity, spans->count + count, sizeof *spans->span);
	for (size_t i = 0; !rc && i < count; i++)
		spans->span[spans->count++] = (struct rh_jinja_span){start + (size_t)j->spans->item[2 * i].content.integer,
		                                                     start + (size_t)j->spans->item[2 * i + 1].content.integer};
	return rc;
}

/* A function of its own: after longjmp, changed local variables of the function that called setjmp are indeterminate. */
static int render(struct jinja *j, struct rh_text *out, struct rh_jinja_spans *spans)
{
	jmp_buf entry;
	j->arena.entry = &entry;
	if (setjmp(entry))
		return j->arena.rc;
	j->root = jinja_scope_open(j, NULL);
	j->spans = jinja_take(&j->arena, 1, sizeof *j->spans);
	bind_variables(j, j->input->variables);
	jinja_execute(j, &j->form->body);
	size_t start = out->length;
	int rc = rh_text_append(out, j->page->bytes, j->page->length);
	return rc || !spans ? rc : keep_spans(j, start, spans);
}

int rh_jinja_render(const struct rh_jinja *jinja, const struct rh_jinja_input *input, const char *where, struct rh_text *out,
                    struct rh_jinja_spans *spans)
{
	struct jinja_buffer page = {0};
	struct jinja j = {.form = jinja, .input = input, .page = &page, .out = &page};
	j.bounds = input->bounds ? *input->bounds : rh_jinja_default_bounds;
	j.arena.limit = j.bounds.memory;
	int rc = render(&j, out, spans);
	if (input->writes_none)
		*input->writes_none |= j.writes_none;
	jinja_arena_free(&j.arena);
	return rc == -EINVAL ? rh_fail(rc, "%s: chat template, line %d: %s", where, j.line, rh_jinja_fault()) : rc;
}

void rh_jinja_spans_free(struct rh_jinja_spans *spans)
{
	rh_free(spans->span);
	*spans = (struct rh_jinja_spans){0};
}
