//! A switch that runs a program for v1model: its parser, ingress, copies, egress and deparser, and the
//! commands of BMv2's `simple_switch_CLI` that the tests give. A value that is read before it is written is a
//! fault.

use super::bits::Bits;
use super::syntax::{Control, Expr, Item, Name, State, Statement, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The port that stands for a packet that is dropped.
const DROP: u128 = 511;
/// Fields of `standard_metadata_t` that the programs use.
const STANDARD: [(&str, u32); 6] = [
    ("standard.ingress_port", 9),
    ("standard.egress_spec", 9),
    ("standard.egress_port", 9),
    ("standard.mcast_grp", 16),
    ("standard.parser_error", 32),
    ("standard.ingress_global_timestamp", 48),
];
/// Errors of the parser.
const ERRORS: [&str; 2] = ["error.NoError", "error.PacketTooShort"];

/// A value, or a number whose width its neighbour gives.
#[derive(Clone, Copy, Debug)]
enum Value {
    Bits(Bits),
    Number(u128),
    Bool(bool),
}

/// The values of one packet.
#[derive(Clone, Default)]
struct Packet {
    fields: BTreeMap<Name, Bits>,
    valid: BTreeSet<Name>,
    payload: Vec<u8>,
}

/// The entries of a table: the values of the keys, and the action with its arguments.
type Entries = BTreeMap<Vec<u128>, (Name, Vec<Bits>)>;

/// A switch.
pub(crate) struct Switch {
    /// Widths of fields, variables and parameters.
    widths: BTreeMap<Name, u32>,
    /// Fields of every header instance, in order.
    headers: BTreeMap<Name, Vec<Name>>,
    constants: BTreeMap<Name, Bits>,
    states: BTreeMap<Name, Rc<State>>,
    controls: BTreeMap<Name, Rc<Control>>,
    /// Parts of the pipeline, in v1model's order.
    main: Vec<Name>,
    registers: BTreeMap<Name, Vec<Bits>>,
    entries: BTreeMap<Name, Entries>,
    defaults: BTreeMap<Name, (Name, Vec<Bits>)>,
    group: Vec<u32>,
    packets: u128,
}

/// Outcome of a statement: the rest is run, or the header did not fit into the packet.
type Outcome = Result<(), TooShort>;
#[derive(Debug)]
struct TooShort;

impl Switch {
    /// A switch whose multicast group 1 has these ports.
    pub(crate) fn new(program: &[Item], group: Vec<u32>) -> Self {
        let mut switch = Switch {
            widths: STANDARD.iter().map(|(name, width)| ((*name).into(), *width)).collect(),
            headers: BTreeMap::new(),
            constants: BTreeMap::new(),
            states: BTreeMap::new(),
            controls: BTreeMap::new(),
            main: Vec::new(),
            registers: BTreeMap::new(),
            entries: BTreeMap::new(),
            defaults: BTreeMap::new(),
            group,
            packets: 0,
        };
        for item in program {
            switch.declare(item, program);
        }
        assert_eq!(switch.main.len(), 6, "v1model has six parts");
        switch
    }

    fn declare(&mut self, item: &Item, program: &[Item]) {
        match item {
            Item::Fields { name, fields, .. } if **name == *"headers_t" => {
                for (header, of) in fields {
                    let Type::Named(of) = of else { panic!("headers_t has headers") };
                    self.header(&format!("hdr.{header}"), fields_of(program, of, true));
                }
            }
            Item::Fields { name, fields, .. } if **name == *"metadata_t" => {
                for (field, of) in fields {
                    self.widen(&format!("meta.{field}"), of);
                }
            }
            Item::Fields { .. } => {}
            Item::Constant(name, width, value) => {
                let value = Bits::new(self.number(width) as u32, self.number(value));
                self.constants.insert(name.clone(), value);
            }
            Item::Parser(states) => self.states.extend(states.iter().cloned()),
            Item::Control(control) => self.control(control),
            Item::Main(parts) => self.main.clone_from(parts),
        }
    }

    fn header(&mut self, name: &str, fields: &[(Name, Type)]) {
        let names: Vec<Name> = fields.iter().map(|(field, _)| format!("{name}.{field}").into()).collect();
        for (path, (_, of)) in names.iter().zip(fields) {
            self.widen(path, of);
        }
        let bits: u32 = names.iter().map(|name| self.widths[name]).sum();
        assert_eq!(bits % 8, 0, "{name} has whole bytes");
        self.headers.insert(name.into(), names);
    }

    fn widen(&mut self, name: &str, of: &Type) {
        if let Type::Bits(width) = of {
            let width = self.number(width) as u32;
            self.widths.insert(name.into(), width);
        }
    }

    fn control(&mut self, control: &Rc<Control>) {
        for (name, of) in &control.parameters {
            self.widen(name, of);
        }
        for (name, width, count) in &control.registers {
            let zero = Bits::new(self.number(width) as u32, 0);
            self.registers.insert(name.clone(), vec![zero; self.number(count) as usize]);
        }
        for (_, action) in &control.actions {
            for (name, width) in &action.parameters {
                self.widen(name, &Type::Bits(width.clone()));
            }
        }
        for (name, table) in &control.tables {
            let (action, arguments) = &table.default;
            assert!(table.actions.contains(action), "{name} has the action {action}");
            let values: Vec<u128> = arguments.iter().map(|value| self.number(value)).collect();
            let bound = bind(control, action, &values, &self.widths);
            self.defaults.insert(name.clone(), bound);
            self.entries.insert(name.clone(), Entries::new());
        }
        self.controls.insert(control.name.clone(), control.clone());
    }

    /// A number that is known before a packet comes.
    fn number(&self, expr: &Expr) -> u128 {
        if let Expr::Number(number) = expr {
            return *number;
        }
        match self.value(expr, &Packet::default()) {
            Value::Number(number) => number,
            Value::Bits(bits) => bits.small(),
            Value::Bool(_) => panic!("{expr:?} is a number"),
        }
    }

    /// One command of the control plane.
    pub(crate) fn command(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let of = |table: &str| {
            let mut all = self.controls.values();
            let has = |control: &&Rc<Control>| control.tables.iter().any(|(name, _)| **name == *table);
            all.find(has).unwrap_or_else(|| panic!("there is no table {table}"))
        };
        match words[..] {
            ["table_set_default", table, action, ref values @ ..] => {
                let values: Vec<u128> = values.iter().map(|value| parse(value)).collect();
                let bound = bind(of(table), action, &values, &self.widths);
                self.defaults.insert(table.into(), bound);
            }
            ["table_add", table, action, ref rest @ ..] => {
                let arrow = rest.iter().position(|word| *word == "=>").expect("keys, an arrow, values");
                let keys: Vec<u128> = rest[..arrow].iter().map(|key| parse(key)).collect();
                let values: Vec<u128> = rest[arrow + 1..].iter().map(|value| parse(value)).collect();
                let control = of(table);
                let declared =
                    &control.tables.iter().find(|(name, _)| **name == *table).expect("it is there").1;
                assert_eq!(declared.keys.len(), keys.len(), "{command}");
                let size = declared.size.as_ref().map_or(1_024, |size| self.number(size)) as usize;
                let bound = bind(control, action, &values, &self.widths);
                let entries = self.entries.get_mut(table).expect("tables have entries");
                assert!(entries.insert(keys, bound).is_none(), "{command}: the entry is there");
                assert!(entries.len() <= size, "{command}: the table is full");
            }
            ["table_delete_match", table, ref keys @ ..] => {
                let keys: Vec<u128> = keys.iter().map(|key| parse(key)).collect();
                let gone = self.entries.get_mut(table).and_then(|entries| entries.remove(&keys));
                assert!(gone.is_some(), "{command}: there is no such entry");
            }
            _ => panic!("{command}: no such command"),
        }
    }

    /// A packet that comes in by a port; the copies that go out, in the order of their ports.
    pub(crate) fn packet(&mut self, port: u32, bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.packets += 1;
        let mut packet = Packet { payload: bytes.to_vec(), ..Packet::default() };
        for (name, _) in STANDARD {
            let value = match name {
                "standard.ingress_port" => port.into(),
                "standard.ingress_global_timestamp" => self.packets,
                _ => 0,
            };
            self.set_number(&mut packet, name, value);
        }
        if self.parse(&mut packet).is_err() {
            self.set_number(&mut packet, "standard.parser_error", 1);
        }
        let [_, verify, ingress, egress, compute, deparse] = self.main.clone().try_into().expect("six parts");
        for part in [verify, ingress] {
            self.run_control(&part, &mut packet);
        }
        let of = |packet: &Packet, name: &str| packet.fields[name].small();
        let ports = match (of(&packet, "standard.mcast_grp"), of(&packet, "standard.egress_spec")) {
            (0, DROP) => Vec::new(),
            (0, port) => vec![port as u32],
            (1, _) => self.group.clone(),
            (group, _) => panic!("there is no group {group}"),
        };
        let mut out = Vec::new();
        for port in ports {
            let mut copy = packet.clone();
            self.set_number(&mut copy, "standard.egress_port", port.into());
            self.set_number(&mut copy, "standard.egress_spec", 0);
            for part in [&egress, &compute] {
                self.run_control(part, &mut copy);
            }
            if of(&copy, "standard.egress_spec") != DROP {
                out.push((port, self.deparse(&deparse, &copy)));
            }
        }
        out
    }

    fn parse(&mut self, packet: &mut Packet) -> Outcome {
        let mut name: Name = "start".into();
        while *name != *"accept" {
            let state = self.states.get(&name).unwrap_or_else(|| panic!("no state {name}")).clone();
            self.run(&state.body, "", packet)?;
            let on: Vec<Value> = state.next.on.iter().map(|on| self.value(on, packet)).collect();
            let fits = |values: &Vec<Expr>| {
                values
                    .iter()
                    .zip(&on)
                    .all(|(value, on)| is_true(binary("==", self.value(value, packet), *on)))
            };
            let next = state.next.cases.iter().find(|(values, _)| fits(values));
            name = next.unwrap_or_else(|| panic!("{name} has a default")).1.clone();
        }
        Ok(())
    }

    fn deparse(&self, part: &str, packet: &Packet) -> Vec<u8> {
        let mut bits = Vec::new();
        for statement in &self.controls[part].body {
            let Statement::Call(_, arguments) = statement else { panic!("a deparser emits") };
            let Expr::Name(header) = &arguments[0] else { panic!("it emits headers") };
            if packet.valid.contains(header) {
                bits.extend(self.headers[header].iter().flat_map(|field| packet.fields[field].bits()));
            }
        }
        let byte = |bits: &[bool]| bits.iter().fold(0u8, |byte, bit| byte << 1 | u8::from(*bit));
        bits.chunks(8).map(byte).chain(packet.payload.iter().copied()).collect()
    }

    fn run_control(&mut self, name: &str, packet: &mut Packet) {
        let control = self.controls.get(name).unwrap_or_else(|| panic!("no control {name}")).clone();
        self.run(&control.body, name, packet).expect("only a parser takes headers");
    }

    fn run(&mut self, body: &[Statement], control: &str, packet: &mut Packet) -> Outcome {
        for statement in body {
            match statement {
                Statement::Declare(name, width) => {
                    let width = self.number(width) as u32;
                    self.widths.insert(name.clone(), width);
                    packet.fields.remove(name);
                }
                Statement::Assign(name, value) => {
                    let value = self.value(value, packet);
                    self.set(packet, name, value);
                }
                Statement::If(condition, then, other) => {
                    let holds = is_true(self.value(condition, packet));
                    self.run(if holds { then } else { other }, control, packet)?;
                }
                Statement::Call(path, arguments) => self.call(path, arguments, control, packet)?,
            }
        }
        Ok(())
    }

    fn call(&mut self, path: &str, arguments: &[Expr], control: &str, packet: &mut Packet) -> Outcome {
        let (object, method) = path.split_once('.').unwrap_or((path, ""));
        match (object, method, arguments) {
            ("mark_to_drop", "", [_]) => {
                self.set_number(packet, "standard.egress_spec", DROP);
                self.set_number(packet, "standard.mcast_grp", 0);
            }
            ("packet", "extract", [Expr::Name(header)]) => return self.extract(header, packet),
            (register, "read", [Expr::Name(to), index]) if self.registers.contains_key(register) => {
                let index = as_bits(self.value(index, packet), 32).small() as usize;
                let value = self.registers[register][index];
                self.set(packet, to, Value::Bits(value));
            }
            (register, "write", [index, value]) if self.registers.contains_key(register) => {
                let index = as_bits(self.value(index, packet), 32).small() as usize;
                let value = self.value(value, packet);
                let place = &mut self.registers.get_mut(register).expect("it is there")[index];
                *place = as_bits(value, place.width);
            }
            (table, "apply", []) if self.entries.contains_key(table) => {
                self.look_up(table, control, packet)?
            }
            (instance, "apply", arguments) => self.apply(instance, arguments, control, packet)?,
            _ => panic!("{path}: no such call"),
        }
        Ok(())
    }

    /// Another control: bits are copied in before it and out behind it, all else has one name.
    fn apply(&mut self, instance: &str, arguments: &[Expr], control: &str, packet: &mut Packet) -> Outcome {
        let has = self.controls[control].instances.iter().find(|(name, _)| **name == *instance);
        let callee = has.unwrap_or_else(|| panic!("{control} has no {instance}")).1.clone();
        let callee = self.controls[&callee].clone();
        assert_eq!(callee.parameters.len(), arguments.len(), "arguments of {instance}");
        for ((name, _), argument) in callee.parameters.iter().zip(arguments) {
            match argument {
                Expr::Name(own) => {
                    assert_eq!(own, name, "what {instance} is given has the name of its parameter")
                }
                value => {
                    let value = self.value(value, packet);
                    self.set(packet, name, value);
                }
            }
        }
        self.run(&callee.body, &callee.name, packet)
    }

    fn look_up(&mut self, name: &str, control: &str, packet: &mut Packet) -> Outcome {
        let within = self.controls[control].clone();
        let table = &within.tables.iter().find(|(table, _)| **table == *name).expect("its own table").1;
        let key = |key| match self.value(key, packet) {
            Value::Bits(bits) => bits.small(),
            other => panic!("a key has bits, not {other:?}"),
        };
        let keys: Vec<u128> = table.keys.iter().map(key).collect();
        let (action, values) = self.entries[name].get(&keys).unwrap_or_else(|| &self.defaults[name]).clone();
        assert!(table.actions.contains(&action), "{name} has no action {action}");
        let action = &within.actions.iter().find(|(name, _)| *name == action).expect("it is declared").1;
        for ((parameter, _), value) in action.parameters.iter().zip(values) {
            self.set(packet, parameter, Value::Bits(value));
        }
        self.run(&action.body, control, packet)
    }

    fn extract(&mut self, header: &str, packet: &mut Packet) -> Outcome {
        let fields = self.headers.get(header).unwrap_or_else(|| panic!("no header {header}")).clone();
        let bits: u32 = fields.iter().map(|field| self.widths[field]).sum();
        let Some((bytes, payload)) = packet.payload.split_at_checked(bits as usize / 8) else {
            return Err(TooShort);
        };
        let (all, payload) = (Bits::of_bytes(bytes), payload.to_vec());
        let mut end = bits;
        for field in fields {
            let width = self.widths[&field];
            packet.fields.insert(field, all.slice(end - 1, end - width));
            end -= width;
        }
        packet.payload = payload;
        packet.valid.insert(header.into());
        Ok(())
    }

    fn set(&self, packet: &mut Packet, name: &str, value: Value) {
        let width = *self.widths.get(name).unwrap_or_else(|| panic!("{name} is not declared"));
        packet.fields.insert(name.into(), as_bits(value, width));
    }

    fn set_number(&self, packet: &mut Packet, name: &str, value: u128) {
        self.set(packet, name, Value::Number(value));
    }

    fn value(&self, expr: &Expr, packet: &Packet) -> Value {
        match expr {
            Expr::Number(number) => Value::Number(*number),
            Expr::Sized(width, number) => Value::Bits(Bits::new(*width, *number)),
            Expr::Name(name) => {
                let error = ERRORS.iter().position(|error| *error == &**name);
                let known = packet.fields.get(name).or_else(|| self.constants.get(name)).copied();
                let known = known.or_else(|| error.map(|number| Bits::new(32, number as u128)));
                Value::Bits(known.unwrap_or_else(|| panic!("{name} is read before it is written")))
            }
            Expr::IsValid(header) => {
                assert!(self.headers.contains_key(header), "there is no {header}");
                Value::Bool(packet.valid.contains(header))
            }
            Expr::Slice(parts) => {
                let [of, high, low] = &**parts;
                let Value::Bits(of) = self.value(of, packet) else { panic!("a slice of bits") };
                Value::Bits(of.slice(self.number(high) as u32, self.number(low) as u32))
            }
            Expr::Cast(parts) => {
                let width = self.number(&parts[0]) as u32;
                Value::Bits(match self.value(&parts[1], packet) {
                    Value::Bits(bits) => bits.cast(width),
                    value => as_bits(value, width),
                })
            }
            Expr::Not(of) => Value::Bool(!is_true(self.value(of, packet))),
            Expr::Complement(of) => match self.value(of, packet) {
                Value::Bits(bits) => Value::Bits(bits.complement()),
                other => panic!("~ takes bits, not {other:?}"),
            },
            Expr::Binary("&&", parts) => {
                Value::Bool(is_true(self.value(&parts[0], packet)) && is_true(self.value(&parts[1], packet)))
            }
            Expr::Binary("||", parts) => {
                Value::Bool(is_true(self.value(&parts[0], packet)) || is_true(self.value(&parts[1], packet)))
            }
            Expr::Binary(operator, parts) => {
                binary(operator, self.value(&parts[0], packet), self.value(&parts[1], packet))
            }
        }
    }
}

fn fields_of<'a>(program: &'a [Item], wanted: &str, header: bool) -> &'a [(Name, Type)] {
    let found = program.iter().find_map(|item| match item {
        Item::Fields { is_header, name, fields } if **name == *wanted && *is_header == header => Some(fields),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{wanted} is not declared"))
}

/// An action of a control with the values of its parameters.
fn bind(control: &Control, action: &str, values: &[u128], widths: &BTreeMap<Name, u32>) -> (Name, Vec<Bits>) {
    let declared = control.actions.iter().find(|(name, _)| **name == *action);
    let parameters = &declared.unwrap_or_else(|| panic!("no action {action}")).1.parameters;
    assert_eq!(parameters.len(), values.len(), "parameters of {action}");
    let bits =
        parameters.iter().zip(values).map(|((name, _), value)| as_bits(Value::Number(*value), widths[name]));
    (action.into(), bits.collect())
}

fn parse(number: &str) -> u128 {
    let digits = number.strip_prefix("0x");
    digits.map_or_else(|| number.parse(), |digits| u128::from_str_radix(digits, 16)).expect("a number")
}

fn is_true(value: Value) -> bool {
    match value {
        Value::Bool(value) => value,
        other => panic!("a condition is true or false, not {other:?}"),
    }
}

/// A value of this width; a number has to fit.
fn as_bits(value: Value, width: u32) -> Bits {
    match value {
        Value::Bits(bits) => {
            assert_eq!(bits.width, width, "the width of {bits:?}");
            bits
        }
        Value::Number(number) => {
            let bits = Bits::new(width, number);
            assert_eq!(bits.small(), number, "{number} fits into {width} bits");
            bits
        }
        Value::Bool(_) => panic!("true and false are no bits"),
    }
}

fn binary(operator: &str, left: Value, right: Value) -> Value {
    if let ("<<" | ">>", Value::Bits(left)) = (operator, left) {
        let by = match right {
            Value::Bits(bits) if bits.width > 8 => panic!("BMv2 shifts by 8 bits, not by {}", bits.width),
            Value::Bits(bits) => bits.small(),
            Value::Number(number) => number,
            Value::Bool(_) => panic!("a shift by a number"),
        };
        return Value::Bits(if operator == "<<" { left.left(by) } else { left.right(by) });
    }
    match (left, right) {
        (Value::Bits(left), Value::Bits(right)) if operator == "++" => Value::Bits(left.concat(right)),
        (Value::Bits(left), right) => bits(operator, left, as_bits(right, left.width)),
        (left, Value::Bits(right)) => bits(operator, as_bits(left, right.width), right),
        _ => panic!("{operator} takes bits, not {left:?} and {right:?}"),
    }
}

fn bits(operator: &str, left: Bits, right: Bits) -> Value {
    match operator {
        "+" => Value::Bits(left.add(right)),
        "-" => Value::Bits(left.subtract(right)),
        "*" => Value::Bits(Bits::new(left.width, left.small() * right.small())),
        "&" => Value::Bits(left.and(right)),
        "|" => Value::Bits(left.or(right)),
        "==" => Value::Bool(left == right),
        "!=" => Value::Bool(left != right),
        "<" => Value::Bool(left.is_below(right)),
        ">" => Value::Bool(right.is_below(left)),
        "<=" => Value::Bool(!right.is_below(left)),
        ">=" => Value::Bool(!left.is_below(right)),
        _ => panic!("{operator} of bits"),
    }
}
