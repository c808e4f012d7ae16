//! The part of P4_16 that the programs are written in, from text to a tree. All names share one space: a
//! parameter of a control stands for what its caller calls so too.

use std::iter::Peekable;
use std::rc::Rc;
use std::vec::IntoIter;

/// A name, of which packets have many copies.
pub(crate) type Name = Rc<str>;

/// An expression.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    /// A number without a width.
    Number(u128),
    /// A number of so many bits.
    Sized(u32, u128),
    /// A variable, constant or field, or `error.NAME`.
    Name(Name),
    /// `header.isValid()`.
    IsValid(Name),
    Slice(Box<[Expr; 3]>),
    Cast(Box<[Expr; 2]>),
    Not(Box<Expr>),
    Complement(Box<Expr>),
    Binary(&'static str, Box<[Expr; 2]>),
}

/// A statement.
#[derive(Clone, Debug)]
pub(crate) enum Statement {
    /// A variable of `bit<N>`, or a field that is set.
    Declare(Name, Expr),
    Assign(Name, Expr),
    If(Expr, Vec<Statement>, Vec<Statement>),
    Call(Name, Vec<Expr>),
}

/// `select`, or a single state.
#[derive(Clone, Debug)]
pub(crate) struct Transition {
    pub(crate) on: Vec<Expr>,
    /// Values, none for `default`, and the state.
    pub(crate) cases: Vec<(Vec<Expr>, Name)>,
}

/// A state of a parser.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) body: Vec<Statement>,
    pub(crate) next: Transition,
}

/// An action: its parameters with their widths, and its body.
#[derive(Clone, Debug)]
pub(crate) struct Action {
    pub(crate) parameters: Vec<(Name, Expr)>,
    pub(crate) body: Vec<Statement>,
}

/// A table of exact keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) keys: Vec<Expr>,
    pub(crate) actions: Vec<Name>,
    pub(crate) default: (Name, Vec<Expr>),
    pub(crate) size: Option<Expr>,
}

/// A declaration.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A header or struct: fields with their types.
    Fields {
        is_header: bool,
        name: Name,
        fields: Vec<(Name, Type)>,
    },
    Constant(Name, Expr, Expr),
    Parser(Vec<(Name, Rc<State>)>),
    Control(Rc<Control>),
    /// The arguments of `V1Switch`.
    Main(Vec<Name>),
}

/// A control block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Control {
    pub(crate) name: Name,
    pub(crate) parameters: Vec<(Name, Type)>,
    /// Instances of other controls, by name.
    pub(crate) instances: Vec<(Name, Name)>,
    /// Registers: name, width, and how many.
    pub(crate) registers: Vec<(Name, Expr, Expr)>,
    pub(crate) actions: Vec<(Name, Rc<Action>)>,
    pub(crate) tables: Vec<(Name, Rc<Table>)>,
    pub(crate) body: Vec<Statement>,
}

/// A type.
#[derive(Clone, Debug)]
pub(crate) enum Type {
    Bits(Expr),
    Named(Name),
}

/// Operators, those that bind most loosely first.
const OPERATORS: [&[&str]; 7] =
    [&["||"], &["&&"], &["==", "!=", "<=", ">=", "<", ">"], &["|"], &["&"], &["<<", ">>"], &["+", "-", "++"]];
/// Signs of more than one character.
const SIGNS: [&str; 9] = ["++", "&&", "||", "==", "!=", "<=", ">=", "<<", ">>"];

/// Reads a program that the preprocessor has been over.
pub(crate) fn read(text: &str) -> Vec<Item> {
    let mut reader = Reader(words(text).into_iter().peekable());
    let mut items = Vec::new();
    while reader.0.peek().is_some() {
        items.push(reader.item());
    }
    items
}

/// Two operands, or the number that they make: the preprocessor leaves long sums of numbers.
fn joined(operator: &'static str, left: Expr, right: Expr) -> Expr {
    if let (Expr::Number(left), Expr::Number(right)) = (&left, &right) {
        match operator {
            "+" => return Expr::Number(left + right),
            "-" => return Expr::Number(left - right),
            "*" => return Expr::Number(left * right),
            "/" => return Expr::Number(left / right),
            "%" => return Expr::Number(left % right),
            _ => {}
        }
    }
    Expr::Binary(operator, Box::new([left, right]))
}

fn words(text: &str) -> Vec<Name> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let len = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            SIGNS.iter().find(|sign| rest.starts_with(**sign)).map_or(first.len_utf8(), |sign| sign.len())
        };
        words.push(rest[..len].into());
        rest = rest[len..].trim_start();
    }
    words
}

struct Reader(Peekable<IntoIter<Name>>);

impl Reader {
    fn word(&mut self) -> Name {
        self.0.next().expect("the program goes on")
    }

    fn at(&mut self, word: &str) -> bool {
        self.0.peek().is_some_and(|next| **next == *word)
    }

    fn take(&mut self, word: &str) -> bool {
        let is_there = self.at(word);
        if is_there {
            self.word();
        }
        is_there
    }

    fn expect(&mut self, word: &str) {
        let next = self.word();
        assert_eq!(*next, *word, "before {:?}", self.0.clone().take(8).collect::<Vec<_>>());
    }

    /// Takes a list with commas, up to the closing sign and with it.
    fn list<T>(&mut self, close: &str, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut all = Vec::new();
        while !self.take(close) {
            all.push(one(self));
            if !self.at(close) {
                self.expect(",");
            }
        }
        all
    }

    /// Everything up to the closing brace.
    fn block<T>(&mut self, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        self.expect("{");
        let mut all = Vec::new();
        while !self.take("}") {
            all.push(one(self));
        }
        all
    }

    /// A name with its members.
    fn path(&mut self) -> Name {
        let mut path = self.word();
        while self.take(".") {
            path = format!("{path}.{}", self.word()).into();
        }
        path
    }

    fn width(&mut self) -> Expr {
        self.expect("<");
        // A width is a number, or stands in brackets.
        let width = self.unary();
        self.expect(">");
        width
    }

    fn a_type(&mut self) -> Type {
        match &*self.word() {
            "bit" => Type::Bits(self.width()),
            name => Type::Named(name.into()),
        }
    }

    fn field(&mut self) -> (Name, Type) {
        let (of, name) = (self.a_type(), self.word());
        self.expect(";");
        (name, of)
    }

    /// Parameters with their directions.
    fn parameters(&mut self) -> Vec<(Name, Type)> {
        self.expect("(");
        self.list(")", |reader| {
            let _ = reader.take("in") || reader.take("out") || reader.take("inout");
            let of = reader.a_type();
            (reader.word(), of)
        })
    }

    fn item(&mut self) -> Item {
        match &*self.word() {
            kind @ ("header" | "struct") => {
                let (is_header, name) = (kind == "header", self.word());
                Item::Fields { is_header, name, fields: self.block(Reader::field) }
            }
            "const" => {
                let Type::Bits(width) = self.a_type() else { panic!("constants have bits") };
                let name = self.word();
                self.expect("=");
                let value = self.expr();
                self.expect(";");
                Item::Constant(name, width, value)
            }
            "parser" => {
                self.word();
                self.parameters();
                Item::Parser(self.block(Reader::state))
            }
            "control" => Item::Control(Rc::new(self.control())),
            "V1Switch" => {
                self.expect("(");
                let parts = self.list(")", |reader| {
                    let name = reader.word();
                    reader.expect("(");
                    reader.expect(")");
                    name
                });
                self.expect("main");
                self.expect(";");
                Item::Main(parts)
            }
            other => panic!("a program has no {other:?} on its own"),
        }
    }

    fn state(&mut self) -> (Name, Rc<State>) {
        self.expect("state");
        let name = self.word();
        let mut state = State { body: Vec::new(), next: Transition { on: Vec::new(), cases: Vec::new() } };
        self.expect("{");
        while !self.take("transition") {
            let statement = self.statement();
            state.body.extend(statement);
        }
        if self.take("select") {
            self.expect("(");
            state.next.on = self.list(")", Reader::expr);
            state.next.cases = self.block(|reader| {
                let values = if reader.take("default") {
                    Vec::new()
                } else if reader.take("(") {
                    reader.list(")", Reader::expr)
                } else {
                    vec![reader.expr()]
                };
                reader.expect(":");
                let state = reader.word();
                reader.expect(";");
                (values, state)
            });
        } else {
            state.next.cases.push((Vec::new(), self.word()));
            self.expect(";");
        }
        self.expect("}");
        (name, Rc::new(state))
    }

    fn control(&mut self) -> Control {
        let mut control = Control { name: self.word(), parameters: self.parameters(), ..Control::default() };
        self.expect("{");
        while !self.take("}") {
            match &*self.word() {
                "apply" => control.body = self.block(Reader::statement).concat(),
                "action" => {
                    let name = self.word();
                    let parameters = self.parameters().into_iter().map(|(name, of)| match of {
                        Type::Bits(width) => (name, width),
                        Type::Named(of) => panic!("an action takes bits, not {of}"),
                    });
                    let parameters = parameters.collect();
                    let body = self.block(Reader::statement).concat();
                    control.actions.push((name, Rc::new(Action { parameters, body })));
                }
                "table" => {
                    let name = self.word();
                    let table = self.table();
                    control.tables.push((name, Rc::new(table)));
                }
                "register" => {
                    self.expect("<");
                    self.expect("bit");
                    self.expect("<");
                    let width = self.unary();
                    self.expect(">>");
                    self.expect("(");
                    let count = self.expr();
                    self.expect(")");
                    control.registers.push((self.word(), width, count));
                    self.expect(";");
                }
                other => {
                    self.expect("(");
                    self.expect(")");
                    control.instances.push((self.word(), other.into()));
                    self.expect(";");
                }
            }
        }
        control
    }

    fn table(&mut self) -> Table {
        let mut table = Table::default();
        self.expect("{");
        while !self.take("}") {
            let property = self.word();
            self.expect("=");
            match &*property {
                "key" => {
                    table.keys = self.block(|reader| {
                        let key = reader.expr();
                        reader.expect(":");
                        reader.expect("exact");
                        reader.expect(";");
                        key
                    });
                    continue;
                }
                "actions" => {
                    table.actions = self.block(|reader| {
                        let name = reader.word();
                        reader.expect(";");
                        name
                    });
                    continue;
                }
                "default_action" => {
                    let name = self.word();
                    self.expect("(");
                    table.default = (name, self.list(")", Reader::expr));
                }
                "size" => table.size = Some(self.expr()),
                other => panic!("a table has no {other:?}"),
            }
            self.expect(";");
        }
        table
    }

    /// A statement; none for a variable without a value.
    fn statement(&mut self) -> Vec<Statement> {
        if self.at("{") {
            return self.block(Reader::statement).concat();
        }
        if self.take("if") {
            self.expect("(");
            let condition = self.expr();
            self.expect(")");
            let then = self.statement();
            let other = if self.take("else") { self.statement() } else { Vec::new() };
            return vec![Statement::If(condition, then, other)];
        }
        if self.take("bit") {
            let (width, name) = (self.width(), self.word());
            let mut made = vec![Statement::Declare(name.clone(), width)];
            if self.take("=") {
                made.push(Statement::Assign(name, self.expr()));
            }
            self.expect(";");
            return made;
        }
        let path = self.path();
        let statement = if self.take("=") {
            Statement::Assign(path, self.expr())
        } else {
            self.expect("(");
            Statement::Call(path, self.list(")", Reader::expr))
        };
        self.expect(";");
        vec![statement]
    }

    fn expr(&mut self) -> Expr {
        self.binary(0)
    }

    fn binary(&mut self, level: usize) -> Expr {
        let Some(operators) = OPERATORS.get(level) else { return self.product() };
        let mut left = self.binary(level + 1);
        while let Some(operator) = operators.iter().copied().find(|operator| self.at(operator)) {
            self.word();
            let right = self.binary(level + 1);
            left = joined(operator, left, right);
        }
        left
    }

    fn product(&mut self) -> Expr {
        let mut left = self.unary();
        while let Some(operator) = ["*", "/", "%"].into_iter().find(|operator| self.at(operator)) {
            self.word();
            let right = self.unary();
            left = joined(operator, left, right);
        }
        left
    }

    fn unary(&mut self) -> Expr {
        if self.take("!") {
            return Expr::Not(Box::new(self.unary()));
        }
        if self.take("~") {
            return Expr::Complement(Box::new(self.unary()));
        }
        let mut value = if self.take("(") {
            if self.take("bit") {
                let width = self.width();
                self.expect(")");
                return Expr::Cast(Box::new([width, self.unary()]));
            }
            let value = self.expr();
            self.expect(")");
            value
        } else {
            self.primary()
        };
        while self.take("[") {
            let high = self.expr();
            self.expect(":");
            let low = self.expr();
            self.expect("]");
            value = Expr::Slice(Box::new([value, high, low]));
        }
        value
    }

    fn primary(&mut self) -> Expr {
        let path = self.path();
        if let Some(header) = path.strip_suffix(".isValid") {
            self.expect("(");
            self.expect(")");
            return Expr::IsValid(header.into());
        }
        if !path.starts_with(|c: char| c.is_ascii_digit()) {
            return Expr::Name(path);
        }
        let number = |digits: &str| match digits.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16),
            None => digits.parse(),
        };
        match path.split_once('w') {
            Some((width, value)) => {
                Expr::Sized(width.parse().expect("a width"), number(value).expect("a number"))
            }
            None => Expr::Number(number(&path).unwrap_or_else(|_| panic!("{path} is no number"))),
        }
    }
}
