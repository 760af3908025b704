use std::fmt;

/// A place in the kernel where a program of the object runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    Recvmsg4,
    Recvmsg6,
    Getpeername4,
    Getpeername6,
    SockRelease,
    PostBind4,
    PostBind6,
    Sendmsg4,
    Sendmsg6,
    Connect4,
    Connect6,
}

impl Hook {
    /// In the order in which programs are attached and replaced: those that undo a translation before those that
    /// make one. Detached in the reverse order.
    pub const ALL: [Self; 11] = [
        Self::Recvmsg4,
        Self::Recvmsg6,
        Self::Getpeername4,
        Self::Getpeername6,
        Self::SockRelease,
        Self::PostBind4,
        Self::PostBind6,
        Self::Sendmsg4,
        Self::Sendmsg6,
        Self::Connect4,
        Self::Connect6,
    ];

    /// The name of the program in the object and of the link's pin.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recvmsg4 => "recvmsg4",
            Self::Recvmsg6 => "recvmsg6",
            Self::Getpeername4 => "getpeername4",
            Self::Getpeername6 => "getpeername6",
            Self::SockRelease => "sock_release",
            Self::PostBind4 => "post_bind4",
            Self::PostBind6 => "post_bind6",
            Self::Sendmsg4 => "sendmsg4",
            Self::Sendmsg6 => "sendmsg6",
            Self::Connect4 => "connect4",
            Self::Connect6 => "connect6",
        }
    }

    /// The program that reads an earlier agent's maps too; `None` where none is needed.
    pub(super) const fn both_name(self) -> Option<&'static str> {
        match self {
            Self::Recvmsg4 => Some("recvmsg4_both"),
            Self::Recvmsg6 => Some("recvmsg6_both"),
            Self::Getpeername4 => Some("getpeername4_both"),
            Self::Getpeername6 => Some("getpeername6_both"),
            Self::SockRelease => Some("sock_release_both"),
            Self::Sendmsg4 => Some("sendmsg4_both"),
            Self::Sendmsg6 => Some("sendmsg6_both"),
            Self::Connect4 => Some("connect4_both"),
            Self::Connect6 => Some("connect6_both"),
            // They look at frontends alone.
            Self::PostBind4 | Self::PostBind6 => None,
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.name() == name)
    }

    /// Number in `enum bpf_attach_type` of include/uapi/linux/bpf.h.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::Connect4 => 10,
            Self::Connect6 => 11,
            Self::PostBind4 => 12,
            Self::PostBind6 => 13,
            Self::Sendmsg4 => 14,
            Self::Sendmsg6 => 15,
            Self::Recvmsg4 => 19,
            Self::Recvmsg6 => 20,
            Self::Getpeername4 => 29,
            Self::Getpeername6 => 30,
            Self::SockRelease => 34,
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
