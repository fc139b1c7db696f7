//! The questions of the arbiter, read without a library.

/// As much of JSON as a question needs: no escapes in names.
pub enum Json {
    Atom(String), // a text or a number
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    pub fn read(text: &str) -> Option<Json> {
        let mut rest = text;
        let value = Json::value(&mut rest)?;
        rest.trim().is_empty().then_some(value)
    }

    fn value(rest: &mut &str) -> Option<Json> {
        *rest = rest.trim_start();
        match rest.chars().next()? {
            '{' => Json::items(rest, '}', |rest| {
                let Json::Atom(name) = Json::value(rest)? else { return None };
                *rest = rest.trim_start().strip_prefix(':')?;
                Some((name, Json::value(rest)?))
            })
            .map(Json::Object),
            '[' => Json::items(rest, ']', Json::value).map(Json::List),
            '"' => {
                let (text, after) = rest[1..].split_once('"')?;
                *rest = after;
                Some(Json::Atom(text.to_string()))
            }
            _ => {
                let (text, after) = rest.split_at(rest.find([',', ']', '}', ':']).unwrap_or(rest.len()));
                *rest = after;
                (!text.is_empty()).then(|| Json::Atom(text.trim().to_string()))
            }
        }
    }

    fn items<T>(rest: &mut &str, close: char, item: fn(&mut &str) -> Option<T>) -> Option<Vec<T>> {
        let mut found = Vec::new();
        *rest = &rest[1..];
        loop {
            *rest = rest.trim_start();
            match rest.chars().next()? {
                ',' => *rest = &rest[1..],
                end if end == close => {
                    *rest = &rest[1..];
                    return Some(found);
                }
                _ => found.push(item(rest)?),
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&Json> {
        let Json::Object(entries) = self else { return None };
        entries.iter().find(|entry| entry.0 == name).map(|entry| &entry.1)
    }

    pub fn number(&self) -> Option<&str> {
        if let Json::Atom(text) = self { Some(text) } else { None }
    }

    /// [[0, 32], [96, 128]]
    pub fn pairs(&self) -> Option<Vec<(usize, usize)>> {
        let Json::List(pairs) = self else { return None };
        let pair = |one: &Json| match one {
            Json::List(ends) if ends.len() == 2 => {
                Some((ends[0].number()?.parse().ok()?, ends[1].number()?.parse().ok()?))
            }
            _ => None,
        };
        pairs.iter().map(pair).collect()
    }
}
