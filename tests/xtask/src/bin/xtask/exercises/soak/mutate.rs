//! A solution, changed in one small way at a time: an operator, a number, a bound, a condition, two arguments in each
//! other's place, a statement that is left out.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use proc_macro2::Span;
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{
    Attribute, BinOp, Expr, ExprBinary, ExprCall, ExprIf, ExprLit, ExprMethodCall, ExprRange,
    ExprTuple, ExprUnary, Lit, Macro, RangeLimits, Stmt, Token, Type, UnOp,
};

#[derive(Clone, Debug)]
pub(super) struct Mutant {
    pub(super) line: usize,
    pub(super) source: String,
    /// The change: the text before, and the text after.
    pub(super) what: String,
    pub(super) text: String,
}

pub(super) fn mutants(solution: &Path) -> anyhow::Result<Vec<Mutant>> {
    let text = fs::read_to_string(solution).with_context(|| format!("{}", solution.display()))?;
    of_text(&text).with_context(|| format!("{}", solution.display()))
}

fn of_text(text: &str) -> anyhow::Result<Vec<Mutant>> {
    let file = syn::parse_file(text)?;
    let mut changes = Changes { text, found: Vec::new() };
    changes.visit_file(&file);
    changes.found.sort_by_key(|change| change.place.start);
    Ok(changes.found.iter().map(|change| change.applied_to(text)).collect())
}

#[derive(Debug)]
struct Change {
    place: Range<usize>,
    replacement: String,
    what: String,
}

impl Change {
    fn applied_to(&self, text: &str) -> Mutant {
        let Range { start, end } = self.place;
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        Mutant {
            line: text[..start].matches('\n').count() + 1,
            source: text[line_start..].lines().next().unwrap_or_default().to_owned(),
            what: self.what.clone(),
            text: format!("{}{}{}", &text[..start], self.replacement, &text[end..]),
        }
    }
}

/// Walks through the syntax and finds what can be changed.
struct Changes<'a> {
    text: &'a str,
    found: Vec<Change>,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(text: &str) -> Vec<(usize, String)> {
        of_text(text).unwrap().into_iter().map(|mutant| (mutant.line, mutant.what)).collect()
    }

    #[test]
    fn each_kind_of_change_is_found_with_its_line() {
        let text = "#[allow(x = 1)]\nfn f(a: [u8; 4]) {\n    a[0] += 2;\n    if a < b {\n        vec![-1.5; n]\n    }\n    \
                    let Some(c) = d.min(e) else { panic!(\"{}\", 7) };\n}\n";
        let told: Vec<(usize, String)> = [
            (3, "without `a[0] += 2;`"),
            (3, "`0` → `1`"),
            (3, "`a[0] += 2` → `a[0] -= 2`"),
            (3, "`a[0] += 2` → `a[0] = 2`"),
            (3, "`2` → `3`"),
            (3, "`2` → `1`"),
            (4, "`a < b` → `!(a < b)`"),
            (4, "`a < b` → `a <= b`"),
            (4, "`a < b` → `a > b`"),
            (5, "`-1.5` → `1.5`"),
            (5, "`1.5` → `2.5`"),
            (7, "`min` → `max`"),
        ]
        .map(|(line, what)| (line, what.to_owned()))
        .to_vec();
        assert_eq!(changes(text), told);
    }

    #[test]
    fn a_change_changes_one_place() {
        let text = "fn f(n: usize) -> usize {\n    (1..n).rev().sum()\n}\n";
        let texts: Vec<String> = of_text(text).unwrap().into_iter().map(|m| m.text).collect();
        let with = |range: &str| text.replace("(1..n).rev()", range);
        assert_eq!(texts, ["(1..n)", "(2..n).rev()", "(0..n).rev()", "(1..=n).rev()"].map(with));
    }

    #[test]
    fn neighbours_change_places_unless_they_are_alike() {
        let told: Vec<String> = changes("fn f() {\n    (g(a, b.h(c, c), d), e)\n}\n")
            .into_iter()
            .map(|(_, what)| what)
            .collect();
        let call = "g(a, b.h(c, c), d)";
        assert_eq!(
            told,
            [
                format!("`({call}, e)` → `(e, {call})`"),
                format!("`{call}` → `g(b.h(c, c), a, d)`"),
                format!("`{call}` → `g(a, d, b.h(c, c))`"),
            ]
        );
    }

    #[test]
    fn a_condition_that_binds_is_not_negated() {
        assert_eq!(changes("fn f() {\n    if let Some(a) = b && c {}\n}\n").len(), 1);
    }

    #[test]
    fn a_condition_is_negated_once() {
        let told = |condition: &str| changes(&format!("fn f() {{\n    if {condition} {{}}\n}}\n"));
        assert_eq!(told("a == b"), [(2, "`a == b` → `a != b`".to_owned())]);
        assert_eq!(told("a"), [(2, "`a` → `!(a)`".to_owned())]);
    }
}
