//! Small changes to a solution: an operator, a number, a bound, a condition, two arguments in each other's
//! place, a statement that is left out.

use std::ops::Range;

use proc_macro2::Span;
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{
    Attribute, BinOp, Expr, ExprBinary, ExprCall, ExprIf, ExprLit, ExprMethodCall, ExprRange,
    ExprTuple, ExprUnary, Lit, Macro, RangeLimits, Stmt, Token, Type, UnOp,
};

use super::mutate::Change;

/// Walks through the syntax and finds what can be changed.
pub(super) struct Changes<'a> {
    pub(super) text: &'a str,
    pub(super) found: Vec<Change>,
}

impl Changes<'_> {
    /// Notes that a place can be changed, told by what surrounds it.
    fn add(&mut self, place: Span, replacement: impl Into<String>, around: Span) {
        self.add_at(place.byte_range(), replacement.into(), around.byte_range());
    }

    fn add_at(&mut self, place: Range<usize>, replacement: String, around: Range<usize>) {
        let before = one_line(&self.text[around.clone()]);
        let after = format!(
            "{}{replacement}{}",
            &self.text[around.start..place.start],
            &self.text[place.end..around.end]
        );
        let after = one_line(&after);
        let what = if after.is_empty() {
            format!("without `{before}`")
        } else {
            format!("`{before}` → `{after}`")
        };
        self.found.push(Change { place, replacement, what });
    }

    /// Each two neighbours of a list, in each other's place.
    fn swap(&mut self, list: &Punctuated<Expr, Token![,]>, around: Span) {
        let places: Vec<Range<usize>> = list.iter().map(|item| item.span().byte_range()).collect();
        for two in places.windows(2) {
            let [one, other] = [&two[0], &two[1]].map(|place| &self.text[place.clone()]);
            if one != other {
                let swapped = format!("{other}{}{one}", &self.text[two[0].end..two[1].start]);
                self.add_at(two[0].start..two[1].end, swapped, around.byte_range());
            }
        }
    }
}

fn one_line(code: &str) -> String {
    code.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl<'ast> Visit<'ast> for Changes<'_> {
    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        for replacement in others(&binary.op) {
            self.add(binary.op.span(), *replacement, binary.span());
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_lit(&mut self, literal: &'ast ExprLit) {
        let span = literal.span();
        match &literal.lit {
            Lit::Int(int) => {
                if let Ok(number) = int.base10_parse::<u128>() {
                    let suffix = int.suffix();
                    self.add(span, format!("{}{suffix}", number + 1), span);
                    if let Some(less) = number.checked_sub(1) {
                        self.add(span, format!("{less}{suffix}"), span);
                    }
                }
            }
            Lit::Float(float) => {
                if let Ok(number) = float.base10_parse::<f64>() {
                    self.add(span, format!("{:?}{}", number + 1.0, float.suffix()), span);
                }
            }
            Lit::Bool(bool) => self.add(span, (!bool.value).to_string(), span),
            _ => {}
        }
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        if let UnOp::Neg(_) | UnOp::Not(_) = unary.op {
            self.add(unary.op.span(), "", unary.span());
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_range(&mut self, range: &'ast ExprRange) {
        let other = match range.limits {
            RangeLimits::HalfOpen(_) => "..=",
            RangeLimits::Closed(_) => "..",
        };
        if range.end.is_some() {
            self.add(range.limits.span(), other, range.span());
        }
        visit::visit_expr_range(self, range);
    }

    fn visit_expr_if(&mut self, condition: &'ast ExprIf) {
        let span = condition.cond.span();
        if !binds(&condition.cond) && !negated_by_its_operator(&condition.cond) {
            let negated = format!("!({})", &self.text[span.byte_range()]);
            self.add(span, negated, span);
        }
        visit::visit_expr_if(self, condition);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        self.swap(&call.args, call.span());
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_tuple(&mut self, tuple: &'ast ExprTuple) {
        self.swap(&tuple.elems, tuple.span());
        visit::visit_expr_tuple(self, tuple);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.swap(&call.args, call.span());
        let other = match call.method.to_string().as_str() {
            "min" => Some("max"),
            "max" => Some("min"),
            "floor" => Some("ceil"),
            "ceil" => Some("floor"),
            _ => None,
        };
        if let Some(other) = other {
            self.add(call.method.span(), other, call.method.span());
        }
        if call.method == "rev" {
            // `a.rev()` becomes `a`.
            let all = call.span();
            let receiver = &self.text[call.receiver.span().byte_range()];
            self.add(all, receiver.to_owned(), all);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(_, Some(_)) = statement {
            self.add(statement.span(), "", statement.span());
        }
        visit::visit_stmt(self, statement);
    }

    /// Of macros only `vec!` computes; the others are messages.
    fn visit_macro(&mut self, call: &'ast Macro) {
        if !call.path.is_ident("vec") {
            return;
        }
        let list = Punctuated::<Expr, Token![,]>::parse_terminated;
        let repeat = Punctuated::<Expr, Token![;]>::parse_separated_nonempty;
        let parts: Vec<Expr> = match list.parse2(call.tokens.clone()) {
            Ok(list) => list.into_iter().collect(),
            Err(_) => match repeat.parse2(call.tokens.clone()) {
                Ok(repeat) => repeat.into_iter().collect(),
                Err(_) => return,
            },
        };
        for part in &parts {
            Changes::visit_owned(self, part);
        }
    }

    // A number in an attribute or a type is no part of the computation.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_type(&mut self, _: &'ast Type) {}
}

impl Changes<'_> {
    /// Visits what was parsed out of a macro.
    fn visit_owned(&mut self, part: &Expr) {
        let mut inner = Changes { text: self.text, found: Vec::new() };
        inner.visit_expr(part);
        self.found.append(&mut inner.found);
    }
}

/// Whether a condition binds names, so that it cannot be negated.
fn binds(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(both) => binds(&both.left) || binds(&both.right),
        _ => false,
    }
}

/// Whether another operator already says the opposite, so that negating the whole would be the same change.
fn negated_by_its_operator(condition: &Expr) -> bool {
    matches!(condition, Expr::Binary(ExprBinary { op: BinOp::Eq(_) | BinOp::Ne(_), .. }))
}

fn others(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["/"],
        BinOp::Div(_) => &["*"],
        BinOp::Rem(_) => &["/"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["==", "<", ">"],
        BinOp::Lt(_) => &["<=", ">"],
        BinOp::Le(_) => &["<"],
        BinOp::Gt(_) => &[">=", "<"],
        BinOp::Ge(_) => &[">"],
        BinOp::AddAssign(_) => &["-=", "="],
        BinOp::SubAssign(_) => &["+=", "="],
        BinOp::MulAssign(_) => &["/=", "="],
        BinOp::DivAssign(_) => &["*=", "="],
        _ => &[],
    }
}
