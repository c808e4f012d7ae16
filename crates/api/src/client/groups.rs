//! Groups to which applications send packets themselves.

use super::{AgentClient, ClientError};
use crate::PROTOCOL_VERSION;
use crate::agent::{ChangeGroupRequest, CreateGroupRequest, Group, ListGroupsRequest, RemoveGroupRequest};
use polycast_types::Rate;

impl AgentClient {
    /// Makes a group of these members, and waits until its path is there. `sources` send to it, this host
    /// among them; where none is named this host alone. `fabric` has to carry it where it is not empty, and
    /// the path has at least the rate.
    ///
    /// # Errors
    /// There is a group of the name or no such path, or the agent or the manager cannot be reached.
    pub async fn create_group(
        &self,
        name: &str,
        members: Vec<String>,
        sources: Vec<String>,
        fabric: &str,
        rate: Option<Rate>,
    ) -> Result<Group, ClientError> {
        let request = CreateGroupRequest {
            protocol_version: PROTOCOL_VERSION,
            name: name.into(),
            members,
            fabric: fabric.into(),
            rate_bps: rate.map(|rate| rate.0),
            sources,
        };
        Ok(self.stub.clone().create_group(request).await?.into_inner())
    }

    /// Takes further members and sources into a group that was made at this agent, and hosts out of it. The
    /// address stays.
    ///
    /// # Errors
    /// There is none of the name, it is another user's, its path cannot change so, or the agent or the
    /// manager cannot be reached.
    pub async fn change_group(
        &self,
        name: &str,
        add: Vec<String>,
        sources: Vec<String>,
        remove: Vec<String>,
    ) -> Result<Group, ClientError> {
        let (protocol_version, name) = (PROTOCOL_VERSION, name.into());
        let request = ChangeGroupRequest { protocol_version, name, add, sources, remove };
        Ok(self.stub.clone().change_group(request).await?.into_inner())
    }

    /// Gives a group back that was made at this agent.
    ///
    /// # Errors
    /// There is none of the name, it is another user's, or the agent went away.
    pub async fn remove_group(&self, name: &str) -> Result<(), ClientError> {
        let request = RemoveGroupRequest { protocol_version: PROTOCOL_VERSION, name: name.into() };
        self.stub.clone().remove_group(request).await?;
        Ok(())
    }

    /// The groups of the cluster; while no manager can be reached, those of this agent.
    ///
    /// # Errors
    /// The agent has another protocol version or went away.
    pub async fn groups(&self) -> Result<Vec<Group>, ClientError> {
        let request = ListGroupsRequest { protocol_version: PROTOCOL_VERSION };
        Ok(self.stub.clone().list_groups(request).await?.into_inner().groups)
    }
}
